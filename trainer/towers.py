"""The two towers: features of a clip and words of a caption into one space.

Letters: B clips, T feature rows of a clip, F numbers of a feature row, N captions, L token ids of a
caption, U distinct words, X words of all captions one after another, W numbers of a word vector,
H text hidden, D numbers of an embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional


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

    def __init__(
        self, feature_dim: int, embedding_dim: int, pool: str, head: str, norm: str = "none"
    ) -> None:
        super().__init__()
        if head == "identity" and feature_dim != embedding_dim:
            raise ValueError(
                f"video_head identity needs embedding_dim {feature_dim}, the features' own size;"
                f" found {embedding_dim}"
            )
        self.pool = pool
        self.attention = nn.Linear(feature_dim, 1, bias=False) if pool == "attention" else None
        self.norm = make_norm(norm, feature_dim)
        self.project: nn.Module = nn.Identity()
        if head == "projection":
            self.project = nn.Linear(feature_dim, embedding_dim)

    def forward(self, features_BTF: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Rows where the mask is false never count: [B, D]."""
        return self.project(self.norm(self._pooled(features_BTF, mask_BT[..., None])))

    def _pooled(self, features_BTF: torch.Tensor, mask_BT1: torch.Tensor) -> torch.Tensor:
        if self.pool == "max":
            lowest = torch.finfo(features_BTF.dtype).min
            return features_BTF.masked_fill(~mask_BT1, lowest).amax(dim=1)
        if self.attention is None:
            weights_BT1 = mask_BT1 / mask_BT1.sum(dim=1, keepdim=True).clamp(min=1)
        else:
            scores_BT1 = self.attention(features_BTF).float()
            weights_BT1 = scores_BT1.masked_fill(~mask_BT1, -torch.inf).softmax(dim=1)
        return (features_BTF * weights_BT1.to(features_BTF.dtype)).sum(dim=1)


class TextTower(nn.Module):
    """Word embedding, fc1, ReLU, max over the words, fc2, as in S3D_HowTo100M's text module.

    fc1 sees each distinct word once; the max over a caption's words then picks from its rows. The
    numbers are those of fc1 on every word, for a fraction of the work, since words repeat.

    `padded_to` lets padding take part in the max of captions with fewer words, as in that module;
    None keeps it out.
    """

    def __init__(
        self,
        num_words: int,
        word_dim: int,
        hidden: int,
        embedding_dim: int,
        *,
        norm: str = "none",
        padded_to: int | None = None,
    ) -> None:
        super().__init__()
        self.padded_to = padded_to
        self.norm = make_norm(norm, hidden)
        self.words = nn.Embedding(num_words + 1, word_dim, padding_idx=0)
        self.fc1 = nn.Linear(word_dim, hidden)
        self.fc2 = nn.Linear(hidden, embedding_dim)

    def forward(self, captions: CaptionWords) -> torch.Tensor:
        """[N, D]; a caption without words is fc2's bias."""
        hidden_UH = functional.relu(self.fc1(self.words(captions.words_U)))
        if not len(captions.places_X):  # no caption, or none with a word
            empty_NH = hidden_UH.new_zeros(len(captions.offsets_N), hidden_UH.shape[1])
            hidden_NH = empty_NH + hidden_UH.sum(dim=0)
        else:
            hidden_NH = functional.embedding_bag(
                captions.places_X, at_least_fp32(hidden_UH), captions.offsets_N, mode="max"
            )
        if self.padded_to is not None:
            hidden_NH = self._with_padding(hidden_NH, captions, self.padded_to)
        return self.fc2(self.norm(hidden_NH))

    def sees(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        """What of a caption decides its embedding: captions of which this is equal are one text."""
        return seen_words(token_ids, self.padded_to)

    def _with_padding(
        self, hidden_NH: torch.Tensor, captions: CaptionWords, length: int
    ) -> torch.Tensor:
        """The max with fc1 of the padding's row, where a caption has fewer words than `length`."""
        ends_N = torch.cat([captions.offsets_N[1:], captions.offsets_N.new_tensor(
            [len(captions.places_X)])])[: len(captions.offsets_N)]  # fmt: skip
        short_N1 = (ends_N - captions.offsets_N < length)[:, None]
        padding_H = functional.relu(self.fc1(self.words.weight[0])).to(hidden_NH.dtype)
        return torch.where(short_N1, torch.maximum(hidden_NH, padding_H), hidden_NH)


def seen_words(token_ids: Iterable[int], padded_to: int | None) -> tuple[int, ...]:
    """What a max over words sees of a caption: neither their order nor their repeats.

    A caption with fewer words than `padded_to` ends in padding, 0, which takes part in the max.
    """
    ids = list(token_ids)
    short = padded_to is not None and len(ids) < padded_to
    return (*sorted(set(ids)), *([0] if short else []))


def make_norm(kind: str, dim: int) -> nn.Module:
    """A normalisation of [N, dim] by its name in the settings."""
    if kind == "none":
        return nn.Identity()
    kinds = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "sync_batch": nn.SyncBatchNorm}
    return kinds[kind](dim)


def at_least_fp32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
