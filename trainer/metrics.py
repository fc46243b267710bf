"""Retrieval metrics from similarities: ranks, recall at K, median rank.

Letters: Q queries, N targets.
"""

from __future__ import annotations

import numpy as np

RECALL_AT = (1, 5, 10)


def retrieval_ranks(similarities_QN: np.ndarray, target_Q: np.ndarray) -> np.ndarray:
    """The rank of each query's own target among all targets, best = 1: [Q] float64.

    Targets as similar as the query's own one share their ranks' middle, so that a constant matrix
    gives (N + 1) / 2 for every query instead of a flattering 1.

    Raises:
        ValueError: the shapes do not fit, a target is out of range, or a similarity is NaN.
    """
    similarities_QN, target_Q = np.asarray(similarities_QN), np.asarray(target_Q)
    if similarities_QN.ndim != 2 or target_Q.shape != similarities_QN.shape[:1]:
        raise ValueError(
            f"similarities {similarities_QN.shape} and targets {target_Q.shape} do not fit:"
            " expected [Q, N] and [Q]"
        )
    if np.isnan(similarities_QN).any():
        bad = int(np.isnan(similarities_QN).any(axis=1).sum())
        raise ValueError(f"similarities of {bad} of {len(target_Q)} queries are NaN")
    num_targets = similarities_QN.shape[1]
    if target_Q.size and (target_Q.min() < 0 or target_Q.max() >= num_targets):
        raise ValueError(
            f"targets span [{target_Q.min()}, {target_Q.max()}], allowed: [0, {num_targets - 1}]"
        )
    own_Q1 = np.take_along_axis(similarities_QN, target_Q[:, None], axis=1)
    better_Q = (similarities_QN > own_Q1).sum(axis=1)
    equal_Q = (similarities_QN == own_Q1).sum(axis=1)  # itself included
    return better_Q + (equal_Q + 1) / 2


def recall_at(ranks_Q: np.ndarray, k: int) -> float:
    """The fraction of queries whose target is among the first `k`."""
    return float(np.mean(ranks_Q <= k))


def median_rank(ranks_Q: np.ndarray) -> float:
    """The median of the ranks."""
    return float(np.median(ranks_Q))


def summarize_ranks(ranks_Q: np.ndarray) -> dict[str, float]:
    """R@1, R@5, R@10, median_rank and mean_rank; no query at all raises `ValueError`."""
    if not len(ranks_Q):
        raise ValueError("there are no queries to take metrics of")
    recalls = {f"R@{k}": recall_at(ranks_Q, k) for k in RECALL_AT}
    return {
        **recalls,
        "median_rank": median_rank(ranks_Q),
        "mean_rank": float(np.mean(ranks_Q)),
    }


def bootstrap_intervals(
    ranks_Q: np.ndarray, *, samples: int = 1000, seed: int = 0
) -> dict[str, list[float]]:
    """95 % intervals of `summarize_ranks`'s numbers, by drawing queries anew with replacement.

    Percentile bootstrap (Efron 1979) over the queries, the targets staying as they are; the draws
    depend on the seed and the number of queries alone.
    """
    generator = np.random.default_rng(seed)
    drawn = [
        summarize_ranks(ranks_Q[generator.integers(len(ranks_Q), size=len(ranks_Q))])
        for _ in range(samples)
    ]
    return {
        name: [float(edge) for edge in np.percentile([one[name] for one in drawn], (2.5, 97.5))]
        for name in drawn[0]
    }
