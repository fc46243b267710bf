"""The best k of many blocks are those of one big sort."""

from __future__ import annotations

import numpy as np
import pytest

from trainer import nearest
from trainer.nearest import Scored, best_rows, merge_best


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
