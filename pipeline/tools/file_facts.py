"""What the data files of a results folder hold, as `pipeline.tools.info` says it.

Each function reads a file as its own reader does, so that a damaged one is refused in one line.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np

from pipeline.formats import captions, embeddings, manifest, shard
from pipeline.formats.arrays import npz_names
from pipeline.formats.bags import TRAIN, VAL, read_bags
from pipeline.formats.files import sha256_of_file
from pipeline.formats.names import again
from pipeline.formats.order import HEADER as ORDER
from pipeline.formats.order import read_order
from pipeline.formats.parquet import describe_table
from pipeline.formats.partial import read_any_partial
from pipeline.formats.plan import (
    CAPTIONS_HEADER,
    VIDEOS_HEADER,
    read_planned_captions,
    read_planned_videos,
)
from pipeline.formats.recipe import Recipe
from pipeline.formats.vocabulary import HEADER, read_vocabulary
from pipeline.rejected import HEADER as REJECTED

NUM_IDS = 3

Facts = dict[str, object]
"""What to say, in order; a value that is empty is left out."""


def of_shard(path: Path) -> Facts:
    """A tar of features, by the index beside it."""
    index_path = path.with_suffix(".parquet")
    if not index_path.exists():
        raise ValueError(f"{path} has no index {index_path.name} beside it: {again(path)}")
    index = shard.read_index(index_path)
    found = path.stat().st_size
    whole = found == index.tar_bytes and sha256_of_file(path) == index.tar_sha256
    if not whole:
        raise ValueError(
            f"{path} is not what its index says ({found:,} bytes, {index.tar_bytes:,} expected, or"
            f" another sha256): {again(path)}"
        )
    facts = of_index(index_path)
    return facts | {"what": "feature shard", "health": "whole: size and sha256 as in the index"}


def of_index(path: Path) -> Facts:
    """The index of a shard."""
    index = shard.read_index(path)
    rows = [row for row in index.rows if row.encoded]
    reasons = Counter(row.reason for row in index.rows if not row.encoded)
    return {
        "what": "index of a feature shard",
        "videos": f"{len(index.rows):,}, {len(rows):,} encoded",
        "without features": say_counts(reasons),
        "vectors": f"{sum(row.num_vectors for row in rows):,} × {index.recipe.feature_dim}",
        "hours": f"{sum(row.decoded_seconds for row in rows) / 3600:.2f}",
        "ids": say_some([row.video_id for row in index.rows]),
        **recipe_facts(index.recipe),
        "made with": json.dumps(index.provenance, sort_keys=True),
    }


def of_table(path: Path) -> Facts:
    """One of our parquet tables."""
    version, rows, metadata = describe_table(path)
    if version == shard.VERSION:
        return of_index(path)
    if version == manifest.VERSION:
        videos = manifest.read_manifest(path)
        reasons = Counter(row.reason for row in videos if not row.accepted)
        return {
            "what": "manifest",
            "videos": f"{rows:,}, {sum(row.accepted for row in videos):,} accepted",
            "rejected": say_counts(reasons),
            "ids": say_some([row.video_id for row in videos]),
        }
    if version == captions.VERSION:
        found, counts = captions.read_captions(path)
        ids = list(dict.fromkeys(caption.video_id for caption in found))
        return {
            "what": "captions",
            "captions": f"{rows:,} of {len(ids):,} videos",
            "counts": say_counts(counts),
            "ids": say_some(ids),
        }
    if version == embeddings.VERSION:
        return of_embeddings(path.with_suffix(".npy"))
    return {"what": version, "rows": rows, "metadata": json.dumps(metadata, sort_keys=True)}


def of_embeddings(path: Path) -> Facts:
    """Embeddings of a shard's clips."""
    found = embeddings.read_embeddings(path, path.with_suffix(".parquet"))
    return {
        "what": "embeddings of clips",
        "clips": f"{found.vectors_CD.shape[0]:,} × {found.vectors_CD.shape[1]}",
        "ids": say_some(list(dict.fromkeys(found.video_ids))),
        **{name.replace("_", " "): found.tags[name] for name in embeddings.TAGS[:3]},
        "health": "all finite" if np.isfinite(found.vectors_CD).all() else "NOT FINITE",
    }


def of_arrays(path: Path) -> Facts:
    """Bags, or a finished video of an unfinished shard."""
    if "tag" in npz_names(path):
        video, recipe_identity = read_any_partial(path)
        assert video.features is not None  # its reader saw them
        vectors, numbers = video.features.shape
        return {
            "what": "a finished video of an unfinished shard",
            "id": video.facts.video_id,
            "vectors": f"{vectors:,} × {numbers}",
            "recipe identity": recipe_identity,
        }
    bags = read_bags(path)
    splits = Counter(bags.video_split.tolist())
    return {
        "what": "bags",
        "videos": f"{bags.num_videos:,}: {splits[TRAIN]:,} train, {splits[VAL]:,} val",
        "clips": f"{bags.num_clips:,}, bags of up to {bags.bag_idx.shape[1]}",
        "captions": f"{bags.num_captions:,}, {bags.metadata['vocabulary_size']:,} words known",
        "counts": say_counts(bags.metadata.get("counts", {})),
        "ids": say_some([key.decode("ascii") for key in bags.vid_paths[:NUM_IDS]], bags.num_videos),
        **recipe_facts(Recipe.from_dict(bags.metadata["recipe"])),
        "vocabulary sha256": bags.metadata["vocabulary_sha256"],
        "health": "whole: every index lies in its table",
    }


def of_plan(path: Path) -> Facts:
    """The list of a shard's videos."""
    expect_header(path, VIDEOS_HEADER)
    videos = read_planned_videos(path)
    return {
        "what": "plan of a shard's videos",
        "videos": f"{len(videos):,}, {sum(v.size_bytes < 0 for v in videos):,} without a file",
        "ids": say_some([video.video_id for video in videos]),
    }


def of_caption_plan(path: Path) -> Facts:
    """The list of a shard's caption sources."""
    expect_header(path, CAPTIONS_HEADER)
    sources = read_planned_captions(path)
    return {
        "what": "plan of a shard's captions",
        "sources": f"{len(sources):,}",
        "files": say_some([source.path for source in sources]),
    }


def of_rejected(path: Path) -> Facts:
    """The list of videos without features."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != REJECTED:
            raise ValueError(f"{path} is no {','.join(REJECTED)}: not ours")
        reasons = Counter(row["reason"] for row in rows)
    return {
        "what": "videos without features",
        "videos": f"{reasons.total():,}",
        "reasons": say_counts(reasons),
    }


def of_words_or_order(path: Path) -> Facts:
    """The vocabulary, or the order of ids that the plan keeps."""
    with open(path, encoding="utf-8", errors="replace") as file:
        first = file.readline()
    return of_order(path) if first.startswith(f"{ORDER}\t") else of_vocabulary(path)


def of_order(path: Path) -> Facts:
    """The order of the videos table that the last plan saw."""
    order = read_order(path)
    return {
        "what": "order of the videos table at the last plan",
        "videos": f"{len(order.video_ids):,}, {order.videos_per_shard:,} in a shard",
        "ids": say_some(order.video_ids),
    }


def of_vocabulary(path: Path) -> Facts:
    """The words."""
    expect_header(path, HEADER)
    words = list(read_vocabulary(path))
    return {
        "what": "vocabulary",
        "words": f"{len(words):,}",
        "first": ", ".join(words[:8]),
        "sha256": sha256_of_file(path),
    }


def recipe_facts(recipe: Recipe) -> Facts:
    """How features were made."""
    sampling = recipe.sampling
    return {
        "recipe": f"{recipe.encoder} {recipe.output}, {recipe.frame_size}² pixels,"
        f" {sampling.frames} frames at {sampling.frame_rate:g} / s every"
        f" {sampling.stride_seconds:g} s, {recipe.precision}",
        "recipe identity": recipe.identity,
    }


def say_counts(counts: dict[str, int]) -> str:
    """What is not 0, by name."""
    return ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in sorted(counts.items()) if n)


def say_some(ids: list[str], total: int | None = None) -> str:
    """The first ids and how many more there are."""
    total = len(ids) if total is None else total
    more = f", … {total - NUM_IDS:,} more" if total > NUM_IDS else ""
    return ", ".join(ids[:NUM_IDS]) + more


def expect_header(path: Path, header: str) -> None:
    """Refuse a text file of somebody else's."""
    with open(path, encoding="utf-8", errors="replace") as file:
        if file.readline().rstrip("\n") != header:
            raise ValueError(f"{path} does not begin with {header.split(chr(9))[0]!r}: not ours")
