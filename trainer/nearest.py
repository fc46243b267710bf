"""The best of very many, exactly and in little memory: scores come in blocks, the best k stay.

Letters: X things of a block, D numbers of an embedding.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from pipeline.formats.embeddings import ClipEmbeddings

ROWS_AT_ONCE = 65_536
"""Vectors that are compared at once, which bounds the memory."""


class Scored(NamedTuple):
    """Something found."""

    score: float
    key: Hashable
    """Things with an equal key count once, the first of them."""
    place: tuple[int, int]
    """Which shard, which row."""


def score_blocks(
    query_D: np.ndarray, vectors: Iterable[np.ndarray]
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Shard, first row and the dot products [X] of each block of each shard's vectors [_, D]."""
    for shard, vectors_XD in enumerate(vectors):
        for first in range(0, len(vectors_XD), ROWS_AT_ONCE):
            yield shard, first, np.asarray(vectors_XD[first : first + ROWS_AT_ONCE]) @ query_D


def merge_best(best: list[Scored], found: Iterable[Scored], k: int) -> list[Scored]:
    """The best `k` of two lists, equal scores in the order of their places, no key twice."""
    merged: dict[Hashable, Scored] = {}
    for one in sorted([*best, *found], key=lambda one: (-one.score, one.place)):
        merged.setdefault(one.key, one)
        if len(merged) == k:
            break
    return list(merged.values())


def best_rows(query_D: np.ndarray, vectors: Iterable[np.ndarray], k: int) -> list[Scored]:
    """The `k` rows of all shards' vectors with the largest dot products, best first."""
    best: list[Scored] = []
    for shard, first, scores_X in score_blocks(query_D, vectors):
        rows = np.argsort(-scores_X, kind="stable")[:k]
        places = [(shard, first + int(row)) for row in rows]
        found = [
            Scored(float(scores_X[row]), place, place)
            for row, place in zip(rows, places, strict=True)
        ]
        best = merge_best(best, found, k)
    return best


def best_moments(query_D: np.ndarray, shards: list[ClipEmbeddings], k: int) -> list[Scored]:
    """The best k clips of which none overlaps a better one by half; fewer where no more are left.

    Whether a clip stays depends on better ones alone, so the start of the list is enough.
    """
    total = sum(len(shard.video_ids) for shard in shards)
    looked = 0
    kept: list[Scored] = []
    while len(kept) < k and looked < total:
        looked = min(total, max(4 * k, 4 * looked))
        kept = []
        for one in best_rows(query_D, [shard.vectors_CD for shard in shards], looked):
            if not any(_overlap(shards, one, other) for other in kept):
                kept.append(one)
    return kept[:k]


def _overlap(shards: list[ClipEmbeddings], one: Scored, other: Scored) -> bool:
    """Whether two clips of a video share more than half of the shorter one."""
    a, b = shards[one.place[0]], shards[other.place[0]]
    i, j = one.place[1], other.place[1]
    if a.video_ids[i] != b.video_ids[j]:
        return False
    shared = min(a.ends[i], b.ends[j]) - max(a.starts[i], b.starts[j])
    return shared > min(a.ends[i] - a.starts[i], b.ends[j] - b.starts[j]) / 2
