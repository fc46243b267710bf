"""The two towers: features of a clip and words of a caption into one space, and model.pt.

Letters: B clips, T feature rows of a clip, F numbers of a feature row, N captions, L token ids of a
caption, U distinct words, X words of all captions one after another, W numbers of a word vector,
H text hidden, D numbers of an embedding.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.formats.files import whole_file
from pipeline.formats.settings import settings_from
from trainer.settings import TrainSettings

FORMAT = "bagpipe-model-1"
LOWEST_TEMPERATURE = 0.01
"""A trained temperature stays above; the usual clamp of the logit scale at 100."""


class CaptionWords(NamedTuple):
    """Captions as places in a list of distinct words."""

    words_U: torch.Tensor
    """[U] int64 token ids, without padding."""
    places_X: torch.Tensor
    """[X] int64: for each word of each caption its place in `words_U`."""
    offsets_N: torch.Tensor
    """[N] int64: where each caption's words start in `places_X`."""


def caption_words(ids_NL: np.ndarray | torch.Tensor) -> CaptionWords:
    """The distinct words of captions given as token ids [N, L], 0 = padding anywhere in a row."""
    ids_NL = np.asarray(ids_NL)
    words_NL = ids_NL > 0
    words_U, places_X = np.unique(ids_NL[words_NL], return_inverse=True)
    counts_N = words_NL.sum(axis=1)
    offsets_N = np.cumsum(counts_N) - counts_N
    return CaptionWords(
        *(torch.from_numpy(a.astype(np.int64)) for a in (words_U, places_X, offsets_N))
    )


class VideoTower(nn.Module):
    """Pool a clip's feature rows, then project; `identity` keeps the encoder's own space."""

    def __init__(self, feature_dim: int, embedding_dim: int, pool: str, head: str) -> None:
        super().__init__()
        if head == "identity" and feature_dim != embedding_dim:
            raise ValueError(
                f"video_head identity needs embedding_dim {feature_dim}, the features' own size;"
                f" found {embedding_dim}"
            )
        self.pool = pool
        self.attention = nn.Linear(feature_dim, 1) if pool == "attention" else None
        self.project = nn.Identity()
        if head == "projection":
            self.project = nn.Linear(feature_dim, embedding_dim)

    def forward(self, features_BTF: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Rows where the mask is false never count: [B, D]."""
        return self.project(self._pooled(features_BTF, mask_BT[..., None]))

    def _pooled(self, features_BTF: torch.Tensor, mask_BT1: torch.Tensor) -> torch.Tensor:
        if self.pool == "max":
            lowest = torch.finfo(features_BTF.dtype).min
            return features_BTF.masked_fill(~mask_BT1, lowest).amax(dim=1)
        if self.pool == "mean":
            weights_BT1 = mask_BT1 / mask_BT1.sum(dim=1, keepdim=True).clamp(min=1)
        else:
            scores_BT1 = self.attention(features_BTF).float()
            weights_BT1 = scores_BT1.masked_fill(~mask_BT1, -torch.inf).softmax(dim=1)
        return (features_BTF * weights_BT1.to(features_BTF.dtype)).sum(dim=1)


class TextTower(nn.Module):
    """Word embedding, fc1, ReLU, max over the words, fc2, as in S3D_HowTo100M's text module.

    fc1 sees each distinct word once; the max over a caption's words then picks from its rows. The
    numbers are those of fc1 on every word, for a fraction of the work, since words repeat.
    """

    def __init__(self, num_words: int, word_dim: int, hidden: int, embedding_dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words + 1, word_dim, padding_idx=0)
        self.fc1 = nn.Linear(word_dim, hidden)
        self.fc2 = nn.Linear(hidden, embedding_dim)

    def forward(self, captions: CaptionWords) -> torch.Tensor:
        """[N, D]; a caption without words is fc2's bias."""
        hidden_UH = functional.relu(self.fc1(self.words(captions.words_U)))
        if not len(captions.places_X):  # no caption, or none with a word
            empty_NH = hidden_UH.new_zeros(len(captions.offsets_N), hidden_UH.shape[1])
            return self.fc2(empty_NH + hidden_UH.sum(dim=0))
        hidden_NH = functional.embedding_bag(
            captions.places_X, _at_least_fp32(hidden_UH), captions.offsets_N, mode="max"
        )
        return self.fc2(hidden_NH)


class TwoTowers(nn.Module):
    """Both towers and the temperature that compares them."""

    def __init__(self, settings: TrainSettings, *, feature_dim: int, num_words: int) -> None:
        super().__init__()
        self.settings = settings
        self.feature_dim = feature_dim
        self.video = VideoTower(
            feature_dim, settings.embedding_dim, settings.video_pool, settings.video_head
        )
        self.text = TextTower(
            num_words, settings.word_dim, settings.text_hidden, settings.embedding_dim
        )
        self.log_temperature = None
        if settings.learn_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(math.log(settings.temperature)))

    def forward(
        self, features_BTF: torch.Tensor, mask_BT: torch.Tensor, captions: CaptionWords
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | float]:
        """Embeddings of clips [B, D] and captions [N, D], and the temperature."""
        clips_BD = self._finished(self.video(_at_least_fp32(features_BTF), mask_BT))
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

    @torch.no_grad()
    def embed_clips(self, features_BTF: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Embeddings to compare by dot product, in fp32: [B, D]."""
        return self._finished(self.video(_at_least_fp32(features_BTF), mask_BT))

    @torch.no_grad()
    def embed_captions(self, ids_NL: torch.Tensor) -> torch.Tensor:
        """Embeddings of token ids, 0 = padding, to compare by dot product, in fp32: [N, D]."""
        device = self.text.fc1.weight.device
        words = caption_words(ids_NL.cpu())
        return self._finished(self.text(CaptionWords(*(part.to(device) for part in words))))

    def _finished(self, embeddings_XD: torch.Tensor) -> torch.Tensor:
        embeddings_XD = _at_least_fp32(embeddings_XD)
        if self.settings.normalize:
            return functional.normalize(embeddings_XD, dim=1)
        return embeddings_XD


def build_model(settings: TrainSettings, *, feature_dim: int, num_words: int) -> TwoTowers:
    """Random weights that depend on the seed alone, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return TwoTowers(settings, feature_dim=feature_dim, num_words=num_words)


def save_model(
    path: str | Path,
    model: TwoTowers,
    *,
    vocabulary: list[str],
    recipe: dict,
    step: int,
    max_caption_words: int,
) -> None:
    """Write weights and all that is needed to use them, whole or not at all."""
    content = {
        "format": FORMAT,
        "settings": asdict(model.settings),
        "vocabulary": vocabulary,
        "recipe": recipe,
        "state": {name: value.cpu() for name, value in model.state_dict().items()},
        "step": step,
        "max_caption_words": max_caption_words,
    }
    with whole_file(path) as scratch:
        torch.save(content, scratch)


def load_model(path: str | Path) -> tuple[TwoTowers, dict]:
    """The model of a model.pt, on the CPU in evaluation mode, and the rest of its content.

    Raises:
        ValueError: the file is cut or no model of this project.
    """
    content = read_model(path)
    settings = settings_from(TrainSettings, content["settings"], where=str(path))
    model = build_model(
        settings,
        feature_dim=content["recipe"]["feature_dim"],
        num_words=len(content["vocabulary"]),
    )
    model.load_state_dict(content.pop("state"))
    return model.eval(), content


def start_from(model: TwoTowers, path: str | Path, words: list[str]) -> None:
    """Load a model.pt of the same shapes and vocabulary into `model`, else `ValueError`."""
    content = read_model(path)
    if content["vocabulary"] != words:
        raise ValueError(f"init_from {path} was trained with another vocabulary")
    own, found = model.state_dict(), content["state"]
    if "log_temperature" in own:  # one that was not trained is in the settings alone
        found.setdefault("log_temperature", own["log_temperature"])
    for name in own:
        if name not in found or own[name].shape != found[name].shape:
            shape = tuple(found[name].shape) if name in found else "nothing"
            raise ValueError(
                f"init_from {path} has {shape} for {name}, expected {tuple(own[name].shape)}"
            )
    model.load_state_dict({name: found[name] for name in own})


def read_model(path: str | Path) -> dict:
    """The content of a model.pt; a cut or foreign file raises `ValueError`."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} is missing: run snakemake --cores N --forcerun train")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a whole model file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, KeyError, UnpicklingError) as error:
        raise ValueError(f"{path} is not a whole model file: {_first_line(error)}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a {FORMAT} file")
    return content


def _at_least_fp32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
