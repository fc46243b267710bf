"""What a trained model is held against: the frozen encoder, without anything learned here.

Where the encoder has a joint space of its own (the released S3D files carry a text tower), clips
and texts are compared in it. Else both are projected at random, by towers of the model's seed.

Letters: B clips, T feature rows of a clip, N texts, L token ids of a text, F numbers of a feature
row, H text hidden, D numbers of an embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.nn import functional

from pipeline.formats.arrays import read_npy
from pipeline.formats.files import read_text_file, sha256_of_file
from pipeline.formats.recipe import Recipe
from pipeline.formats.tensors import read_tensors
from trainer.model import TwoTowers, build_model
from trainer.towers import seen_words

NAMES = ("text_module.word_embd.weight", "text_module.fc1.weight", "text_module.fc1.bias",
         "text_module.fc2.weight", "text_module.fc2.bias", "fc.weight", "fc.bias")  # fmt: skip
MAX_WORDS = 30
"""Of a text in the evaluation of the released code; shorter texts are padded to it."""


class EncoderSpace:
    """The joint space of S3D_HowTo100M: its last layer for clips, its text module for texts.

    Texts are read as the released code does: no lower-casing, unknown words left out, and padding
    up to `MAX_WORDS` takes part in the maximum.
    """

    name = "the frozen encoder's own joint space"

    def __init__(self, state: dict[str, torch.Tensor], words: list[str]) -> None:
        self._words_VW, *text, fc_DF, fc_D = (state[name].float() for name in NAMES)
        self._fc1_HW, self._fc1_H, self._fc2_DH, self._fc2_D = text
        self._last = (fc_DF, fc_D)
        size = len(self._words_VW)
        if len(words) > size:
            raise ValueError(
                f"evaluate.baseline_words has {len(words)} words, the text tower of"
                f" evaluate.baseline_weights {size} vectors: they are no pair"
            )
        self._ids = {word: number for number, word in enumerate(words[: size - 1], start=1)}

    def token_ids(self, text: str) -> list[int]:
        """The numbers of a text's known words."""
        found = (self._ids.get(word) for word in re.findall(r"[\w']+", text))
        return [number for number in found if number is not None][:MAX_WORDS]

    @torch.no_grad()
    def embed_clips(self, features_BTF: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """The mean of the rows in the encoder's last layer: [B, D]."""
        weights_BT1 = (mask_BT / mask_BT.sum(dim=1, keepdim=True))[..., None]
        mean_BF = (features_BTF * weights_BT1).sum(dim=1)
        if mean_BF.shape[1] == len(self._last[1]):  # it is the last layer already
            return mean_BF
        return functional.linear(mean_BF, *self._last)

    def sees(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        """What of a text decides its embedding: its words, and whether it is padded."""
        return seen_words(token_ids, MAX_WORDS)

    @torch.no_grad()
    def embed_captions(self, ids_NL: torch.Tensor) -> torch.Tensor:
        """The text module: [N, D]."""
        padded_NL = functional.pad(ids_NL, (0, max(0, MAX_WORDS - ids_NL.shape[1])))
        vectors_NLW = self._words_VW[padded_NL]
        hidden_NLH = functional.relu(functional.linear(vectors_NLW, self._fc1_HW, self._fc1_H))
        return functional.linear(hidden_NLH.amax(dim=1), self._fc2_DH, self._fc2_D)


def encoder_space(weights: str, words: str, recipe: Recipe) -> EncoderSpace:
    """The joint space of the encoder that made the features.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: the weights are not those of the features, hold no text tower, or the words do
            not fit it.
    """
    for key, path in (("baseline_weights", weights), ("baseline_words", words)):
        if not Path(path).is_file():
            raise FileNotFoundError(f"evaluate.{key} {path} does not exist: name a file, or null")
    found = sha256_of_file(weights)
    if found != recipe.weights_sha256:
        raise ValueError(
            f"evaluate.baseline_weights {weights} has sha256 {found}, the features were made with"
            f" {recipe.weights_sha256}: name the file of encode.weights, or null"
        )
    return EncoderSpace(_read_state(weights), _read_words(words))


def untrained(model: TwoTowers) -> TwoTowers:
    """A model of the same shape with the random weights of its seed.

    Training started from these, unless it began with `init_from` or word vectors.
    """
    return build_model(
        model.settings,
        feature_dim=model.feature_dim,
        num_words=model.text.words.num_embeddings - 1,
        max_caption_words=model.text.padded_to,
    ).eval()


def _read_state(path: str) -> dict[str, torch.Tensor]:
    state = read_tensors(path)
    if isinstance(state, dict):
        state = state.get("state_dict", state)
    state = state if isinstance(state, dict) else {}
    state = {str(name).removeprefix("module."): value for name, value in state.items()}
    missing = [name for name in NAMES if not isinstance(state.get(name), torch.Tensor)]
    if missing:
        raise ValueError(
            f"evaluate.baseline_weights {path} has no text tower ({missing[0]} is missing): set it"
            " to null for a random projection"
        )
    return state


def _read_words(path: str) -> list[str]:
    """The words of an .npy array of strings, or of a text file, one a line; the first has id 1."""
    if Path(path).suffix != ".npy":
        return read_text_file(path).split()
    try:
        return [str(word) for word in read_npy(path).ravel()]
    except ValueError as error:
        raise ValueError(
            f"evaluate.baseline_words {path} is no array of plain strings ({error}): write its"
            " words into a text file, one a line"
        ) from None
