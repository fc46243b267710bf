"""Stage `evaluate`: a trained model's text-to-video and video-to-text retrieval on held-out clips.

Reads   model.pt, settings/evaluate.json, plan/ (which shards exist), shards/, vocabulary.txt, and
        bags/ when the test is the validation split
Writes  evaluate/{protocol}.json
By hand `python -m trainer.evaluate --help`

Each protocol of the settings names its texts and clips; the result says on what its numbers rest,
and stands beside that of the frozen encoder.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np

from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import sha256_of_file, write_json
from pipeline.formats.names import again
from pipeline.formats.recipe import Recipe
from pipeline.formats.settings import read_settings
from pipeline.formats.tags import RETRIEVAL
from pipeline.formats.vocabulary import read_vocabulary
from trainer.baseline import encoder_space, untrained
from trainer.cli import run
from trainer.clip_list import PUBLISHED_PAIRS, check_published, read_test_rows
from trainer.embed_pairs import Embedder, embed_clips, embed_texts
from trainer.model import TwoTowers, load_model
from trainer.protocol import (
    SPARE_SECONDS,
    Pair,
    Protocol,
    pairs_of_list,
    pairs_of_validation,
)
from trainer.retrieval import Ranks, facts_of, list_queries, rank_pairs
from trainer.settings import EvaluateSettings, ProtocolSettings

logger = logging.getLogger(__name__)


def choose_protocol(
    settings: ProtocolSettings, args: argparse.Namespace, content: dict, vocabulary: dict[str, int]
) -> Protocol:
    """The pairs to test, of the protocol's list or else of the validation split.

    Raises:
        ValueError: too many clips of the list lack features, or all do; or the list is not the
            published one of that name.
    """
    names = sorted(path.stem for path in args.plan.glob("*.tsv"))
    recipe = Recipe.from_dict(content["recipe"])
    windows = settings.num_windows
    if settings.clips is None:
        check_published(args.protocol, [], "the validation split")
        return pairs_of_validation(args.bags, args.shards, names, vocabulary, recipe, windows)
    rows = read_test_rows(settings.clips)
    check_published(args.protocol, rows, settings.clips)
    max_words = content["max_caption_words"]
    protocol = pairs_of_list(rows, args.shards, names, vocabulary, max_words, recipe, windows)
    missing = protocol.num_missing_rows / protocol.num_rows
    if missing > settings.max_missing or not protocol.pairs:
        first = [f"{video_id} ({why})" for video_id, why in protocol.missing.items()][:3]
        raise ValueError(
            f"{settings.clips}: {protocol.num_missing_rows} of {protocol.num_rows} clips have no"
            f" features (max_missing of {args.protocol} is {settings.max_missing}):"
            f" {', '.join(first)}"
        )
    return protocol


def check_vocabulary(content: dict, vocabulary: dict[str, int], path: Path) -> None:
    """Refuse token ids that mean other words to the model."""
    if content["vocabulary"] != list(vocabulary):
        raise ValueError(
            f"the model was trained with another vocabulary ({len(content['vocabulary'])} words)"
            f" than {path} ({len(vocabulary)} words): {again('train')}"
        )


def rank_model(model: TwoTowers, pairs: list[Pair], shards: Path) -> Ranks:
    """The ranks that a model, trained or not, gives."""
    normalized = model.settings.normalize
    clips_ND = embed_clips(
        model, pairs, shards, feature_dim=model.feature_dim, normalized=normalized
    )
    texts = [pair.token_ids for pair in pairs]
    return rank_texts(model, texts, clips_ND, pairs)


def rank_texts(
    embedder: Embedder, texts: list[list[int]], clips_ND: np.ndarray, pairs: list[Pair]
) -> Ranks:
    """The ranks of pairs whose clips are embedded and whose texts are token ids of `embedder`."""
    texts_ND = embed_texts(embedder, texts, pairs)
    return rank_pairs(texts_ND, clips_ND, pairs, [embedder.sees(ids) for ids in texts])


def measure_baseline(
    settings: EvaluateSettings, model: TwoTowers, content: dict, pairs: list[Pair], shards: Path
) -> dict:
    """The same test without anything learned here."""
    if settings.baseline_weights is None or settings.baseline_words is None:
        ranks = rank_model(untrained(model), pairs, shards)
        name = "a random projection of the frozen features and of the words"
        return {"name": name, "seed": model.settings.seed, **ranks.summary()}
    recipe = Recipe.from_dict(content["recipe"])
    space = encoder_space(settings.baseline_weights, settings.baseline_words, recipe)
    dim = recipe.feature_dim
    clips_ND = embed_clips(space, pairs, shards, feature_dim=dim, normalized=False)
    texts = [space.token_ids(pair.row.text) for pair in pairs]
    ranks = rank_texts(space, texts, clips_ND, pairs)
    words = sha256_of_file(settings.baseline_words)
    return {"name": space.name, "words_sha256": words, **ranks.summary()}


def describe_test(
    name: str, settings: ProtocolSettings, protocol: Protocol, recipe: Recipe
) -> dict:
    """What the numbers rest on, so that they can be compared with others."""
    seconds = recipe.sampling.frames / recipe.sampling.frame_rate
    spread = (
        f"{settings.num_windows} windows of {seconds:g} s, spread evenly over the clip"
        f" up to {SPARE_SECONDS:g} s before its end, averaged"
    )
    pooled = "all feature rows whose middle lies in the clip, pooled by the model"
    return {
        "format": RETRIEVAL,
        "protocol": {
            "name": name,
            "clips": "validation split" if settings.clips is None else settings.clips,
            "sha256": None if settings.clips is None else sha256_of_file(settings.clips),
            "num_windows": settings.num_windows,
            "windows": spread if settings.num_windows else pooled,
            "published_pairs": PUBLISHED_PAIRS.get(name),
            "ties": "middle rank",
            "interval": "95 %, bootstrap over the queries, 1000 draws, seed 0",
        },
        "num_rows": protocol.num_rows,
        "missing": {
            "rows": protocol.num_missing_rows,
            "max_missing": settings.max_missing,
            "videos": protocol.missing,
        },
    }


def describe_model(args: argparse.Namespace, content: dict) -> dict:
    """Which checkpoint, features and words were tested."""
    return {
        "model": {"sha256": sha256_of_file(args.model), "step": content["step"]},
        "recipe": content["recipe"],
        "recipe_identity": Recipe.from_dict(content["recipe"]).identity,
        "vocabulary_sha256": sha256_of_file(args.vocabulary),
    }


def tell(result: dict) -> None:
    """The numbers as log lines, the trained model's beside the baseline's and chance."""
    for direction in ("text_to_video", "video_to_text"):
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in result[direction].items())
        logger.info("%s of %d pairs: %s", direction, result["num_pairs"], numbers)
        base, chance = result["baseline"][direction]["R@10"], result["chance"]["R@10"]
        logger.info("%s, R@10: baseline %.3f, chance %.3f", direction, base, chance)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandLine(
        prog="python -m trainer.evaluate",
        description="A trained model and feature shards in, its retrieval metrics (JSON) out.",
    )
    parser.add_argument("--protocol", required=True, help="a name in evaluate.protocols")
    parser.add_argument("--model", type=Path, required=True, help="train/model.pt")
    parser.add_argument("--settings", type=Path, required=True, help="settings/evaluate.json")
    parser.add_argument("--plan", type=Path, required=True, help="folder that names the shards")
    parser.add_argument("--bags", type=Path, required=True, help="folder of the bag files")
    parser.add_argument("--shards", type=Path, required=True, help="folder of the feature shards")
    parser.add_argument("--vocabulary", type=Path, required=True, help="vocabulary.txt")
    parser.add_argument("--output", type=Path, required=True, help="evaluate/{protocol}.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Test one model by one protocol."""
    args = _arguments(argv)
    settings = read_settings(EvaluateSettings, args.settings)
    chosen = settings.protocol(args.protocol)
    model, content = load_model(args.model)
    vocabulary = read_vocabulary(args.vocabulary)
    check_vocabulary(content, vocabulary, args.vocabulary)
    protocol = choose_protocol(chosen, args, content, vocabulary)
    recipe = Recipe.from_dict(content["recipe"])
    ranks = rank_model(model, protocol.pairs, args.shards)
    result = describe_test(args.protocol, chosen, protocol, recipe)
    seen = [model.sees(pair.token_ids) for pair in protocol.pairs]
    result |= facts_of(protocol.pairs, seen) | ranks.summary() | describe_model(args, content)
    result["baseline"] = measure_baseline(settings, model, content, protocol.pairs, args.shards)
    result["queries"] = list_queries(protocol.pairs, ranks)
    write_json(args.output, result)
    tell(result)


if __name__ == "__main__":
    run(main)
