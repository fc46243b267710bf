"""Stage `evaluate`: a trained model's text-to-video and video-to-text retrieval on held-out clips.

Reads   model.pt, settings/evaluate.json, plan/ (which shards exist), shards/, vocabulary.txt, and
        bags/ when the test is the validation split
Writes  evaluate/retrieval.json
By hand `python -m trainer.evaluate --help`

Letters: N pairs, D numbers of an embedding, Q queries of a block, U distinct targets, K hits of a
query.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Hashable
from pathlib import Path

import numpy as np

from pipeline.formats.files import sha256_of_file, write_json
from pipeline.formats.recipe import Recipe
from pipeline.formats.settings import read_settings
from pipeline.formats.vocabulary import read_vocabulary
from trainer.cli import run
from trainer.embed import embed_clips, embed_texts
from trainer.metrics import RECALL_AT, retrieval_ranks, summarize_ranks
from trainer.model import load_model
from trainer.protocol import Pair, Protocol, pairs_of_list, pairs_of_validation, read_test_rows
from trainer.settings import EvaluateSettings

FORMAT = "bagpipe-retrieval-1"
QUERIES_AT_ONCE = 1024
"""Bounds the memory of the similarities."""
NUM_HITS = 5
MAX_LISTED = 5000
"""Queries whose rank and hits stand in the result."""

log = logging.getLogger(__name__)


def evaluate_retrieval(texts_ND: np.ndarray, clips_ND: np.ndarray, pairs: list[Pair]) -> dict:
    """Ranks of all pairs in both directions, with chance levels and the best that ties allow."""
    text_N = number_equals([tuple(pair.token_ids) for pair in pairs])
    clip_N = number_equals([(pair.shard, pair.offset, pair.first, pair.count) for pair in pairs])
    text_ranks_N, hits_NK = rank_own(texts_ND, clips_ND, clip_N)
    clip_ranks_N, _ = rank_own(clips_ND, texts_ND, text_N)
    return {
        "num_pairs": len(pairs),
        "text_to_video": summarize_ranks(text_ranks_N),
        "video_to_text": summarize_ranks(clip_ranks_N),
        "chance": chance_level(len(pairs)),
        "ceiling": ceilings(np.bincount(text_N)[text_N]),
        "texts_without_known_word": sum(not pair.token_ids for pair in pairs),
        "queries": list_queries(pairs, text_ranks_N, clip_ranks_N, hits_NK),
    }


def number_equals(keys: list[Hashable]) -> np.ndarray:
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


def list_queries(
    pairs: list[Pair], text_ranks_N: np.ndarray, clip_ranks_N: np.ndarray, hits_NK: list
) -> list[dict]:
    """For each text its clip, its ranks and the clips found first."""
    return [
        {
            **_describe(pair),
            "rank_text_to_video": float(text_ranks_N[i]),
            "rank_video_to_text": float(clip_ranks_N[i]),
            "hits": [{**_describe(pairs[k]), "score": round(score, 6)} for k, score in hits_NK[i]],
        }
        for i, pair in enumerate(pairs[:MAX_LISTED])
    ]


def _describe(pair: Pair) -> dict:
    row = pair.row
    return {"video_id": row.video_id, "start": row.start, "end": row.end, "text": row.text}


def choose_protocol(
    settings: EvaluateSettings, args: argparse.Namespace, content: dict, vocabulary: dict[str, int]
) -> Protocol:
    """The pairs to test, of the settings' list or else of the validation split.

    Raises:
        ValueError: too many clips of the list lack features, or all do.
    """
    names = sorted(path.stem for path in args.plan.glob("*.tsv"))
    recipe = Recipe.from_dict(content["recipe"])
    if settings.clips is None:
        return pairs_of_validation(args.bags, args.shards, names, vocabulary, recipe)
    rows = read_test_rows(settings.clips)
    max_words = content["max_caption_words"]
    protocol = pairs_of_list(rows, args.shards, names, vocabulary, max_words, recipe)
    missing = protocol.num_missing_rows / protocol.num_rows
    if missing > settings.max_missing or not protocol.pairs:
        first = [f"{video_id} ({why})" for video_id, why in protocol.missing.items()][:3]
        raise ValueError(
            f"{settings.clips}: {protocol.num_missing_rows} of {protocol.num_rows} clips have no"
            f" features (evaluate.max_missing is {settings.max_missing}): {', '.join(first)}"
        )
    return protocol


def check_vocabulary(content: dict, vocabulary: dict[str, int], path: Path) -> None:
    """Refuse token ids that mean other words to the model."""
    if content["vocabulary"] != list(vocabulary):
        raise ValueError(
            f"the model was trained with another vocabulary ({len(content['vocabulary'])} words)"
            f" than {path} ({len(vocabulary)} words): run -R train"
        )


def describe_test(settings: EvaluateSettings, protocol: Protocol) -> dict:
    """What the numbers rest on, so that they can be compared with others."""
    listed = settings.clips is not None
    return {
        "format": FORMAT,
        "protocol": {
            "clips": settings.clips if listed else "validation split",
            "sha256": sha256_of_file(settings.clips) if listed else None,
            "windows": "all feature rows whose middle lies in the clip, pooled by the model",
            "ties": "middle rank",
        },
        "num_rows": protocol.num_rows,
        "missing": {
            "rows": protocol.num_missing_rows,
            "max_missing": settings.max_missing,
            "videos": protocol.missing,
        },
    }


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.evaluate",
        description="A trained model and feature shards in, its retrieval metrics (JSON) out.",
    )
    parser.add_argument("--model", type=Path, required=True, help="train/model.pt")
    parser.add_argument("--settings", type=Path, required=True, help="settings/evaluate.json")
    parser.add_argument("--plan", type=Path, required=True, help="folder that names the shards")
    parser.add_argument("--bags", type=Path, required=True, help="folder of the bag files")
    parser.add_argument("--shards", type=Path, required=True, help="folder of the feature shards")
    parser.add_argument("--vocabulary", type=Path, required=True, help="vocabulary.txt")
    parser.add_argument("--output", type=Path, required=True, help="evaluate/retrieval.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Test one model."""
    args = _arguments(argv)
    settings = read_settings(EvaluateSettings, args.settings)
    model, content = load_model(args.model)
    vocabulary = read_vocabulary(args.vocabulary)
    check_vocabulary(content, vocabulary, args.vocabulary)
    protocol = choose_protocol(settings, args, content, vocabulary)
    feature_dim = content["recipe"]["feature_dim"]
    clips_ND = embed_clips(model, protocol.pairs, args.shards, feature_dim=feature_dim)
    result = describe_test(settings, protocol)
    result |= evaluate_retrieval(embed_texts(model, protocol.pairs), clips_ND, protocol.pairs)
    result["model"] = {"sha256": sha256_of_file(args.model), "step": content["step"]}
    result["recipe"] = content["recipe"]
    result["recipe_identity"] = Recipe.from_dict(content["recipe"]).identity
    result["vocabulary_sha256"] = sha256_of_file(args.vocabulary)
    write_json(args.output, result)
    for direction in ("text_to_video", "video_to_text"):
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in result[direction].items())
        log.info("%s of %d pairs: %s", direction, result["num_pairs"], numbers)
    log.info("chance: R@10 %.3f", result["chance"]["R@10"])


if __name__ == "__main__":
    run(main)
