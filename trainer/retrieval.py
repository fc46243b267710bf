"""Retrieval among the pairs of a test: ranks in both directions, and what they can be held against.

Letters: N pairs, D numbers of an embedding, Q queries of a block, U distinct targets, K hits of a
query.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.metrics import RECALL_AT, bootstrap_intervals, retrieval_ranks, summarize_ranks
from trainer.protocol import Pair

QUERIES_AT_ONCE = 1024
"""Bounds the memory of the similarities."""
NUM_HITS = 5
MAX_LISTED = 5000
"""Queries whose rank and hits stand in the result."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where each pair's counterpart came, 1 = first, and what came first."""

    text_to_video_N: np.ndarray
    video_to_text_N: np.ndarray
    hits: list[list[tuple[int, float]]]
    """Of each text: pairs whose clips score best, with their scores."""

    def summary(self) -> dict:
        """Metrics in both directions with their intervals."""
        both = {"text_to_video": self.text_to_video_N, "video_to_text": self.video_to_text_N}
        return {
            **{name: summarize_ranks(ranks_N) for name, ranks_N in both.items()},
            "interval": {name: bootstrap_intervals(ranks_N) for name, ranks_N in both.items()},
        }


def rank_pairs(
    texts_ND: np.ndarray, clips_ND: np.ndarray, pairs: list[Pair], seen: list[tuple[int, ...]]
) -> Ranks:
    """Rank each pair's clip for its text, and its text for its clip.

    `seen` is what the embedder sees of each text (`Embedder.sees`); where it is equal, so are the
    texts.
    """
    text_N = number_equals(seen)
    clip_N = number_equals([(p.shard, p.offset, p.first, p.count, p.windows) for p in pairs])
    text_ranks_N, hits = rank_own(texts_ND, clips_ND, clip_N)
    clip_ranks_N, _ = rank_own(clips_ND, texts_ND, text_N)
    return Ranks(text_ranks_N, clip_ranks_N, hits)


def facts_of(pairs: list[Pair], seen: list[tuple[int, ...]]) -> dict:
    """The number of pairs, chance, and the best that texts allow of which the same is seen."""
    text_N = number_equals(seen)
    return {
        "num_pairs": len(pairs),
        "chance": chance_level(len(pairs)),
        "ceiling": ceilings(np.bincount(text_N)[text_N]),
        "texts_without_known_word": sum(not pair.token_ids for pair in pairs),
    }


def number_equals(keys: Sequence[Hashable]) -> np.ndarray:
    """For each key the number of its value, in order of first appearance: [N] int64."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def rank_own(
    queries_ND: np.ndarray, targets_ND: np.ndarray, number_N: np.ndarray
) -> tuple[np.ndarray, list]:
    """Each query's rank of the target in its own row, and its first hits as (target, score).

    Targets with the same number are equal. Their similarities are computed once, since a matrix
    product rounds equal rows differently, which would break ties by chance.
    """
    _, first_U = np.unique(number_N, return_index=True)
    distinct_UD = targets_ND[first_U]
    ranks, hits = [], []
    for first in range(0, len(queries_ND), QUERIES_AT_ONCE):
        block_QU = queries_ND[first : first + QUERIES_AT_ONCE] @ distinct_UD.T
        block_QN = block_QU[:, number_N]
        ranks.append(retrieval_ranks(block_QN, first + np.arange(len(block_QN))))
        best_QK = np.argsort(-block_QN, axis=1, kind="stable")[:, :NUM_HITS]
        hits += [
            [(int(k), float(scores_N[k])) for k in best_K]
            for best_K, scores_N in zip(best_QK, block_QN, strict=True)
        ]
    return np.concatenate(ranks), hits


def chance_level(num_targets: int) -> dict[str, float]:
    """What drawing targets blindly gives."""
    recalls = {f"R@{k}": min(1.0, k / num_targets) for k in RECALL_AT}
    middle = (num_targets + 1) / 2
    return {**recalls, "median_rank": middle, "mean_rank": middle}


def ceilings(sizes_N: np.ndarray) -> dict[str, dict[str, float]]:
    """The best recalls that equal texts allow; `sizes_N` counts the pairs with each pair's text.

    Text to video, equal queries get the same order, in which only K of the m clips are among the
    first K. Video to text, the m equal texts tie, and share the middle (m + 1) / 2 of their ranks.
    """
    return {
        "text_to_video": {
            f"R@{k}": float(np.mean(np.minimum(sizes_N, k) / sizes_N)) for k in RECALL_AT
        },
        "video_to_text": {f"R@{k}": float(np.mean((sizes_N + 1) / 2 <= k)) for k in RECALL_AT},
    }


def list_queries(pairs: list[Pair], ranks: Ranks) -> list[dict]:
    """For each text its clip, its ranks and the clips found first."""
    return [
        {
            **_describe(pair),
            "rank_text_to_video": float(ranks.text_to_video_N[i]),
            "rank_video_to_text": float(ranks.video_to_text_N[i]),
            "hits": [{**_describe(pairs[k]), "score": round(score, 6)} for k, score in hits_K],
        }
        for i, (pair, hits_K) in enumerate(zip(pairs[:MAX_LISTED], ranks.hits, strict=False))
    ]


def _describe(pair: Pair) -> dict:
    row = pair.row
    return {"video_id": row.video_id, "start": row.start, "end": row.end, "text": row.text}
