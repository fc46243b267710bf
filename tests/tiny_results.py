"""A results folder made from the formats alone: two shards of made-up features, small and exact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.bags import build_bags
from pipeline.formats.bags import write_bags
from pipeline.formats.caption_summary import CaptionSummary, write_caption_summary
from pipeline.formats.captions import Caption, write_captions
from pipeline.formats.files import sha256_of_file, write_csv, write_json, write_text
from pipeline.formats.manifest import write_manifest
from pipeline.formats.plan import PlannedVideo, Unmatched, write_planned_videos, write_unmatched
from pipeline.formats.recipe import Recipe
from pipeline.formats.shard import EncodedVideo, VideoFacts, read_index
from pipeline.formats.shard_writer import write_shard
from pipeline.formats.vocabulary import write_vocabulary
from pipeline.settings import BagsSettings
from tests.examples import manifest_row, recipe

WORDS = ["cut", "the", "onion", "fry", "rice", "boil", "water", "peel", "egg", "mix"]
TEXTS = ["cut the onion", "fry the rice", "boil water", "peel the egg", "mix the rice", "cut egg"]
FEATURE_DIM = 8
NUM_FRAMES = 24
"""At 4 frames a second and a stride of 1 s: 6 vectors over 6 s, with middles at 0.5, 1.5, ..."""
RECIPE = recipe(feature_dim=FEATURE_DIM)
BAGS = BagsSettings(
    anchor="caption",
    clip_seconds=2.0,
    grid_seconds=2.0,
    bag_window_seconds=1.0,
    bag_size=3,
    val_fraction=0.0,
)

FITTING = Unmatched(unit="captions", captions=0, caption_names=[], videos=0, video_ids=[])


@dataclass(frozen=True)
class TinyResults:
    """Where the folder is, and what is in it."""

    root: Path
    features: dict[str, np.ndarray]
    """Video id to [6, 8] float16, also of videos that failed (which are not in the shards)."""


def video_facts(video_id: str, *, encoded: bool = True) -> VideoFacts:
    """Facts of a video of 6 s, or of one that failed to decode."""
    return VideoFacts(
        video_id=video_id,
        status="encoded" if encoded else "failed",
        reason="" if encoded else "truncated",
        error_message="" if encoded else "5.0 of 6.0 s do not decode",
        num_frames=NUM_FRAMES if encoded else 0,
        decoded_seconds=6.0 if encoded else 1.0,
        declared_seconds=6.0,
        truncated=False,
        bad_packets=0,
        size_bytes=1000,
        mtime_ns=1,
    )


def make_results(
    root: Path, shards: tuple[tuple[str, ...], ...] = (("a.1", "b"), ("c", "broken")), *,
    recipe: Recipe = RECIPE,
) -> TinyResults:  # fmt: skip
    """Write plan, manifest, captions, shards, vocabulary, bags and rejected.csv under `root`.

    A video whose id begins with `broken` fails to encode; the first video of each shard is in the
    split `val`. Each video has captions at [0, 2), [2, 4) and [4, 6) s.
    """
    rng = np.random.default_rng(0)
    features: dict[str, np.ndarray] = {}
    write_vocabulary(root / "vocabulary.txt", WORDS)
    vocabulary = {word: i for i, word in enumerate(WORDS, start=1)}
    for number, ids in enumerate(shards):
        name = f"{number:05d}"
        features |= {i: rng.normal(size=(6, FEATURE_DIM)).astype("<f2") for i in ids}
        _write_shard(root, name, ids, features, recipe)
        captions = [
            Caption(video_id, 2.0 * k, 2.0 * k + 2, TEXTS[(3 * number + place + k) % len(TEXTS)])
            for place, video_id in enumerate(ids)
            for k in range(3)
        ]
        write_captions(root / f"captions/{name}.parquet", captions, {"read": len(captions)})
        index = read_index(root / f"shards/{name}.parquet")
        splits = {video_id: "train" if place else "val" for place, video_id in enumerate(ids)}
        bags = build_bags(index, captions, splits, vocabulary, BAGS, max_caption_words=5)
        bags.metadata.update(
            shard=name,
            recipe=recipe.to_dict(),
            recipe_identity=recipe.identity,
            vocabulary_sha256=sha256_of_file(root / "vocabulary.txt"),
            vocabulary_size=len(WORDS),
            max_caption_words=5,
            tar_bytes=index.tar_bytes,
            tar_sha256=index.tar_sha256,
        )
        write_bags(root / f"bags/{name}.npz", bags)
    _write_summaries(root, shards)
    return TinyResults(root, features)


def _write_shard(root: Path, name: str, ids: tuple[str, ...], features: dict, recipe: Recipe):
    planned = [PlannedVideo(i, f"videos/{i}.mp4", "", 1000, 1) for i in ids]
    write_planned_videos(root / f"plan/{name}.tsv", planned)
    write_manifest(
        root / f"manifest/{name}.parquet", [manifest_row(i, duration_seconds=6.0) for i in ids]
    )
    videos = [
        EncodedVideo(facts=video_facts(i), features=features[i])
        if not i.startswith("broken")
        else EncodedVideo(facts=video_facts(i, encoded=False), features=None)
        for i in ids
    ]
    tar, index = root / f"shards/{name}.tar", root / f"shards/{name}.parquet"
    write_shard(tar, index, videos, recipe, {"device": "cpu"})


def _write_summaries(root: Path, shards: tuple[tuple[str, ...], ...]) -> None:
    ids = [video_id for shard in shards for video_id in shard]
    write_unmatched(root / "plan", FITTING)
    counts = {"read": 3 * len(ids) + 2, "kept": 3 * len(ids), "dropped_empty": 2}
    summary = CaptionSummary(
        shards={f"{n:05d}": sha256_of_file(root / f"captions/{n:05d}.parquet")
                for n in range(len(shards))},
        counts=counts, videos=len(ids), captions=3 * len(ids), hours=6 * len(ids) / 3600,
    )  # fmt: skip
    write_caption_summary(root / "captions/summary.json", summary)
    broken = [i for i in ids if i.startswith("broken")]
    write_csv(
        root / "rejected.csv",
        ["video_id", "path", "stage", "reason", "message"],
        [(i, f"videos/{i}.mp4", "encode", "truncated", "5.0 of 6.0 s") for i in broken],
    )
    write_text(root / "train/metrics.jsonl", "")
    write_json(root / "settings/bags.json", {"anchor": "caption", "bag_size": 3})
