"""The best k of many blocks are those of one big sort."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.formats.embeddings import ClipEmbeddings
from trainer import nearest
from trainer.nearest import Scored, best_moments, best_rows, merge_best


@pytest.mark.parametrize("block", [1, 3, 64])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_blocks_give_what_one_sort_gives(monkeypatch, block, k):
    monkeypatch.setattr(nearest, "ROWS_AT_ONCE", block)
    rng = np.random.default_rng(0)
    # Few different numbers, so that many scores are equal: these keep the order of their places.
    shards = [rng.integers(-2, 3, size=(rows, 3)).astype(np.float32) for rows in (20, 0, 31)]
    query = np.array([1.0, 2.0, -1.0], np.float32)
    every = [
        (-float(vector @ query), (shard, row))
        for shard, vectors in enumerate(shards)
        for row, vector in enumerate(vectors)
    ]
    expected = [(place, -score) for score, place in sorted(every)[:k]]
    assert [(one.place, one.score) for one in best_rows(query, shards, k)] == expected


def test_equal_keys_count_once():
    found = [Scored(1.0, "a", (0, 0)), Scored(3.0, "b", (0, 1)), Scored(3.0, "b", (0, 2))]
    assert merge_best(found[:1], found[1:], 2) == [found[1], found[0]]


@pytest.mark.parametrize("k", [1, 3, 9])
def test_distinct_leaves_out_clips_that_overlap_a_better_one_by_half(k):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 3)).astype("<f4")
    ids = ["a" if row < 25 else "b" for row in range(40)]
    starts = [0.7 * (row % 25) for row in range(40)]
    ends = [start + 2 for start in starts]
    shard = ClipEmbeddings(vectors, ids, starts, ends, {})
    query = np.array([1.0, -1.0, 0.5], np.float32)
    kept: list[int] = []
    for row in np.argsort(-(vectors @ query)).tolist():
        near = [o for o in kept if ids[o] == ids[row] and abs(starts[o] - starts[row]) < 1]
        if not near:
            kept.append(row)
    found = best_moments(query, [shard], k)
    assert [one.place[1] for one in found] == kept[:k]
