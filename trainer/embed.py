"""Embeds the clips and texts of a test with a trained model, refusing numbers that are none.

Letters: N pairs, B pairs of a batch, T feature rows of a clip, F numbers of a feature row, L token
ids of a text, D numbers of an embedding.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.shard import read_features
from trainer.model import TwoTowers
from trainer.protocol import Pair

BATCH = 256


def embed_clips(
    model: TwoTowers, pairs: list[Pair], shards: Path, *, feature_dim: int
) -> np.ndarray:
    """Read and embed the pairs' clips: [N, D] float32.

    Raises:
        ValueError: a shard is cut, or an embedding is not finite (the first video is named).
    """
    parts = []
    for first in range(0, len(pairs), BATCH):
        batch = pairs[first : first + BATCH]
        features_BTF = np.zeros((len(batch), max(p.count for p in batch), feature_dim), np.float32)
        mask_BT = np.arange(features_BTF.shape[1]) < np.array([[p.count] for p in batch])
        for place, pair in enumerate(batch):
            features_BTF[place, : pair.count] = _read_clip(pair, shards, feature_dim)
        embedded_BD = model.embed_clips(torch.from_numpy(features_BTF), torch.from_numpy(mask_BT))
        parts.append(embedded_BD.numpy())
    return _finite(np.concatenate(parts), pairs, "clip")


def _read_clip(pair: Pair, shards: Path, feature_dim: int) -> np.ndarray:
    descriptor = os.open(shards / f"{pair.shard}.tar", os.O_RDONLY)
    try:
        return read_features(descriptor, pair.offset, feature_dim, pair.first, pair.count)
    finally:
        os.close(descriptor)


def embed_texts(model: TwoTowers, pairs: list[Pair]) -> np.ndarray:
    """Embed the pairs' texts: [N, D] float32; without a known word 0, which is like every clip."""
    longest = max(1, *(len(pair.token_ids) for pair in pairs), 1)
    ids_NL = np.zeros((len(pairs), longest), np.int64)
    for place, pair in enumerate(pairs):
        ids_NL[place, : len(pair.token_ids)] = pair.token_ids
    texts_ND = model.embed_captions(torch.from_numpy(ids_NL)).numpy()
    texts_ND[~(ids_NL > 0).any(axis=1)] = 0
    return _finite(texts_ND, pairs, "text")


def _finite(embeddings_ND: np.ndarray, pairs: list[Pair], what: str) -> np.ndarray:
    bad = np.flatnonzero(~np.isfinite(embeddings_ND).all(axis=1))
    if len(bad):
        raise ValueError(
            f"the {what} embeddings of {len(bad)} of {len(pairs)} pairs are NaN or infinite, first"
            f" at video {pairs[bad[0]].row.video_id!r}: the model diverged; lower train.lr"
        )
    return embeddings_ND
