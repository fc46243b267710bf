"""Embeds the clips and texts of a test, refusing numbers that are none.

Letters: N pairs, B pairs of a batch, T feature rows of a clip, S windows of a batch's clips, F
numbers of a feature row, L token ids of a text, D numbers of an embedding.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from pipeline.formats.shard import read_features
from trainer.protocol import Pair

BATCH = 256


class Embedder(Protocol):
    """Whatever brings clips and texts into one space: a trained model, or a baseline."""

    def embed_clips(self, features_BTF: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Feature rows where the mask is true: [B, D]."""

    def embed_captions(self, ids_NL: torch.Tensor) -> torch.Tensor:
        """Token ids, 0 = padding: [N, D]."""

    def sees(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        """What of a text decides its embedding: texts of which this is equal are one target."""


def embed_clips(
    model: Embedder, pairs: list[Pair], shards: Path, *, feature_dim: int, normalized: bool
) -> np.ndarray:
    """Read and embed the pairs' clips: [N, D] float32.

    `normalized` says that embeddings have length 1, which the average of windows then gets again.

    Raises:
        ValueError: a shard is cut, or an embedding is not finite (the first video is named).
    """
    parts = []
    for first in range(0, len(pairs), BATCH):
        batch = pairs[first : first + BATCH]
        rows = [_read_clip(pair, shards, feature_dim) for pair in batch]
        if batch[0].windows:
            parts.append(_averaged(model, batch, rows, normalized=normalized))
        else:
            parts.append(_pooled(model, rows))
    return _finite(np.concatenate(parts), pairs, "clip")


def _pooled(model: Embedder, rows: list[np.ndarray]) -> np.ndarray:
    counts_B = np.array([len(array) for array in rows])
    features_BTF = np.zeros((len(rows), counts_B.max(), rows[0].shape[1]), np.float32)
    mask_BT = np.arange(features_BTF.shape[1]) < counts_B[:, None]
    for place, array in enumerate(rows):
        features_BTF[place, : len(array)] = array
    return model.embed_clips(torch.from_numpy(features_BTF), torch.from_numpy(mask_BT)).numpy()


def _averaged(
    model: Embedder, pairs: list[Pair], rows: list[np.ndarray], *, normalized: bool
) -> np.ndarray:
    """The mean of the windows' embeddings, as MIL-NCE's evaluation takes it."""
    chosen = [array[list(pair.windows)] for pair, array in zip(pairs, rows, strict=True)]
    features_S1F = torch.from_numpy(np.concatenate(chosen).astype(np.float32))[:, None]
    embedded_SD = model.embed_clips(features_S1F, torch.ones(features_S1F.shape[:2]).bool())
    mean_BD = embedded_SD.view(len(pairs), len(pairs[0].windows), -1).mean(dim=1)
    return (functional.normalize(mean_BD, dim=1) if normalized else mean_BD).numpy()


def _read_clip(pair: Pair, shards: Path, feature_dim: int) -> np.ndarray:
    descriptor = os.open(shards / f"{pair.shard}.tar", os.O_RDONLY)
    try:
        return read_features(descriptor, pair.offset, feature_dim, pair.first, pair.count)
    finally:
        os.close(descriptor)


def embed_texts(model: Embedder, texts: list[list[int]], pairs: list[Pair]) -> np.ndarray:
    """Embed the pairs' texts, given as token ids: [N, D] float32.

    A text without a known word becomes 0, which is as near to one clip as to every other.
    """
    parts = []
    for first in range(0, len(texts), BATCH):
        batch = texts[first : first + BATCH]
        ids_BL = np.zeros((len(batch), max(1, *map(len, batch), 1)), np.int64)
        for place, ids in enumerate(batch):
            ids_BL[place, : len(ids)] = ids
        texts_BD = model.embed_captions(torch.from_numpy(ids_BL)).numpy()
        texts_BD[~(ids_BL > 0).any(axis=1)] = 0
        parts.append(texts_BD)
    return _finite(np.concatenate(parts), pairs, "text")


def _finite(embeddings_ND: np.ndarray, pairs: list[Pair], what: str) -> np.ndarray:
    bad = np.flatnonzero(~np.isfinite(embeddings_ND).all(axis=1))
    if len(bad):
        raise ValueError(
            f"the {what} embeddings of {len(bad)} of {len(pairs)} pairs are NaN or infinite, first"
            f" at video {pairs[bad[0]].row.video_id!r}: the model diverged; lower train.lr"
        )
    return embeddings_ND
