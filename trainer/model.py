"""The model: both towers and the temperature, and model.pt.

Letters: B clips, T feature rows of a clip, F numbers of a feature row, N captions, L token ids of a
caption, D numbers of an embedding, X clips or captions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from pipeline.formats.files import whole_file
from pipeline.formats.names import again
from pipeline.formats.settings import settings_from
from pipeline.formats.tags import MODEL
from pipeline.formats.tensors import check_sums, read_tensors, tensor_bytes
from trainer.settings import TrainSettings
from trainer.towers import CaptionWords, TextTower, VideoTower, at_least_fp32, caption_words

LOWEST_TEMPERATURE = 0.01
"""A trained temperature stays above; the usual clamp of the logit scale at 100."""


class TwoTowers(nn.Module):
    """Both towers and the temperature that compares them."""

    def __init__(
        self,
        settings: TrainSettings,
        *,
        feature_dim: int,
        num_words: int,
        max_caption_words: int | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.feature_dim = feature_dim
        if settings.padding_in_max and max_caption_words is None:
            raise ValueError("padding_in_max needs to know to how many words captions are padded")
        self.video = VideoTower(
            feature_dim,
            settings.embedding_dim,
            settings.video_pool,
            settings.video_head,
            settings.norm,
        )
        self.text = TextTower(
            num_words,
            settings.word_dim,
            settings.text_hidden,
            settings.embedding_dim,
            norm=settings.norm,
            padded_to=max_caption_words if settings.padding_in_max else None,
        )
        self.text.words.weight.requires_grad_(not settings.freeze_words)
        self.log_temperature = None
        if settings.learn_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(settings.temperature)))

    def forward(
        self, features_BTF: torch.Tensor, mask_BT: torch.Tensor, captions: CaptionWords
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | float]:
        """Embeddings of clips [B, D] and captions [N, D], and the temperature."""
        clips_BD = self._finished(self.video(at_least_fp32(features_BTF), mask_BT))
        captions_ND = self._finished(self.text(captions))
        return clips_BD, captions_ND, self.temperature

    @property
    def temperature(self) -> torch.Tensor | float:
        """What similarities are divided by: a tensor [] where it is trained."""
        if self.log_temperature is None:
            return self.settings.temperature
        return self.log_temperature.exp()

    @torch.no_grad()
    def clamp_temperature(self) -> None:
        """Keep a trained temperature where gradients do not explode."""
        if self.log_temperature is not None:
            self.log_temperature.clamp_(min=math.log(LOWEST_TEMPERATURE))

    def sees(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        """As the text tower's: captions of which this is equal have equal embeddings."""
        return self.text.sees(token_ids)

    @torch.no_grad()
    def embed_clips(self, features_BTF: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Embeddings to compare by dot product, in fp32: [B, D]."""
        return self._finished(self.video(at_least_fp32(features_BTF), mask_BT))

    @torch.no_grad()
    def embed_captions(self, ids_NL: torch.Tensor) -> torch.Tensor:
        """Embeddings of token ids, 0 = padding, to compare by dot product, in fp32: [N, D]."""
        device = self.text.fc1.weight.device
        words = caption_words(ids_NL.cpu())
        return self._finished(self.text(CaptionWords(*(part.to(device) for part in words))))

    def _finished(self, embeddings_XD: torch.Tensor) -> torch.Tensor:
        embeddings_XD = at_least_fp32(embeddings_XD)
        if self.settings.normalize:
            return functional.normalize(embeddings_XD, dim=1)
        return embeddings_XD


def build_model(
    settings: TrainSettings,
    *,
    feature_dim: int,
    num_words: int,
    max_caption_words: int | None = None,
) -> TwoTowers:
    """Random weights that depend on the seed alone, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return TwoTowers(
            settings,
            feature_dim=feature_dim,
            num_words=num_words,
            max_caption_words=max_caption_words,
        )


def save_model(
    path: str | Path,
    model: TwoTowers,
    *,
    vocabulary: list[str],
    recipe: dict,
    step: int,
    max_caption_words: int,
) -> None:
    """Write weights and all that is needed to use them, whole or not at all.

    Raises:
        OSError: it cannot be written, as on a full disk; a file that was there stays as it was.
    """
    content = {
        "format": MODEL,
        "settings": asdict(model.settings),
        "vocabulary": vocabulary,
        "recipe": recipe,
        "state": {name: value.cpu() for name, value in model.state_dict().items()},
        "step": step,
        "max_caption_words": max_caption_words,
    }
    with whole_file(path) as scratch:
        scratch.write_bytes(tensor_bytes(content))


def load_model(path: str | Path) -> tuple[TwoTowers, dict]:
    """The model of a model.pt, on the CPU in evaluation mode, and the rest of its content.

    Raises:
        ValueError: the file is cut or no model of this project.
    """
    content = read_model(path)
    try:
        settings = settings_from(TrainSettings, content["settings"], where=str(path))
        sizes = {
            "feature_dim": content["recipe"]["feature_dim"],
            "num_words": len(content["vocabulary"]),
            "max_caption_words": content["max_caption_words"],
        }
        # A softmax does not see it; models had it before.
        content["state"].pop("video.attention.bias", None)
        _check_shapes(content["state"], settings, sizes)
        model = build_model(settings, **sizes)
        model.load_state_dict(content.pop("state"))
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is not a whole model file: {_first_line(error)}") from None
    return model.eval(), content


def _check_shapes(state: dict, settings: TrainSettings, sizes: dict) -> None:
    """Raise `KeyError` unless the weights are those of the sizes, before these take memory."""
    with torch.device("meta"):
        expected = build_model(settings, **sizes).state_dict()
    differing = [
        name
        for name in {*expected, *state}
        if name not in expected or name not in state or expected[name].shape != state[name].shape
    ]
    if differing:
        raise KeyError(f"{min(differing)} is missing, foreign or of another shape")


def read_model(path: str | Path) -> dict:
    """The content of a model.pt; a cut or foreign file raises `ValueError`."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} is missing: {again('train')}")
    check_sums(path, what="model file")
    content = read_tensors(path, what="model file")
    if not isinstance(content, dict) or content.get("format") != MODEL:
        raise ValueError(f"{path} is not a {MODEL} file")
    return content


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
