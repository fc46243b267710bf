"""Ranks with ties in the middle, NaN refused, recalls and medians."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainer.metrics import (
    bootstrap_intervals,
    retrieval_ranks,
    summarize_ranks,
)


def test_ranks_equal_a_count_by_hand():
    similarities = np.array([[0.9, 0.1, 0.5], [0.2, 0.1, 0.3], [0.4, 0.6, 0.5]])
    assert retrieval_ranks(similarities, np.array([0, 1, 2])).tolist() == [1, 3, 2]
    assert retrieval_ranks(similarities, np.array([1, 2, 1])).tolist() == [3, 1, 1]


def test_ties_share_the_middle_rank_and_rows_stay_rows():
    assert retrieval_ranks(np.zeros((4, 9)), np.arange(4)).tolist() == [5.0] * 4
    similarities = np.array([[3.0, 2.0, 2.0, 1.0]])
    assert retrieval_ranks(similarities, np.array([1])).tolist() == [2.5]


def test_ranks_without_ties_equal_argsort():
    random = np.random.default_rng(0)
    similarities, target = random.normal(size=(30, 50)), random.integers(0, 50, 30)
    order = np.argsort(-similarities, axis=1)
    expected = [order[q].tolist().index(target[q]) + 1 for q in range(30)]
    assert retrieval_ranks(similarities, target).tolist() == expected


def test_summary_of_known_ranks():
    summary = summarize_ranks(np.array([1.0, 1, 2, 5, 6, 10, 11, 20]))
    assert summary == {
        "R@1": 0.25, "R@5": 0.5, "R@10": 0.75, "median_rank": 5.5, "mean_rank": 7.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("similarities", "target", "line"),
    [
        ([[1, np.nan], [0, 1]], [0, 1], "1 of 2 queries are NaN"),
        ([[1, 0]], [2], r"targets span \[2, 2\], allowed: \[0, 1\]"),
        ([[1, 0]], [0, 1], r"similarities \(1, 2\) and targets \(2,\) do not fit"),
        ([1, 0], [0, 1], "do not fit"),
    ],
)
def test_bad_input_is_refused(similarities, target, line):
    with pytest.raises(ValueError, match=line):
        retrieval_ranks(np.array(similarities, float), np.array(target))


def test_no_query_is_refused():
    with pytest.raises(ValueError, match="no queries"):
        summarize_ranks(np.zeros(0))


def binomial_quantile(n: int, p: float, level: float) -> int:
    """The smallest count whose cumulated probability reaches `level`."""
    total = 0.0
    for k in range(n + 1):
        total += math.comb(n, k) * p**k * (1 - p) ** (n - k)
        if total >= level:
            return k
    return n


def test_intervals_of_recalls_are_those_of_a_binomial():
    ranks = np.array([1.0] * 60 + [7.0] * 60 + [500.0] * 80)
    found = bootstrap_intervals(ranks)
    for name, p in (("R@1", 0.3), ("R@5", 0.3), ("R@10", 0.6)):
        expected = [binomial_quantile(200, p, level) / 200 for level in (0.025, 0.975)]
        assert found[name] == pytest.approx(expected, abs=0.011), name  # two counts of 200
    low, high = found["mean_rank"]
    deviation = ranks.std() / np.sqrt(200)
    assert (high - low) == pytest.approx(2 * 1.96 * deviation, rel=0.1)


def test_intervals_are_the_same_each_time_and_empty_where_nothing_varies():
    ranks = np.array([1.0, 2.0, 3.0, 50.0])
    assert bootstrap_intervals(ranks) == bootstrap_intervals(ranks)
    assert bootstrap_intervals(ranks) != bootstrap_intervals(ranks, seed=1)
    assert bootstrap_intervals(np.ones(5))["median_rank"] == [1.0, 1.0]
