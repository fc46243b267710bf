"""What the report says, gathered from the files of a results folder; no drawing, no page."""

from __future__ import annotations

import csv
import json
import platform
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeline.formats import manifest, shard
from pipeline.formats.bags import TRAIN, VAL, read_bags
from pipeline.formats.caption_summary import CaptionSummary, read_caption_summary
from pipeline.formats.files import read_json
from pipeline.formats.parquet import read_table
from pipeline.formats.recipe import Recipe

LIBRARIES = ("av", "numpy", "pyarrow", "snakemake", "torch", "webdataset")
SECTIONS = ("plan", "manifest", "captions", "encode", "vocabulary", "bags", "train", "evaluate")


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFacts:
    """The videos of the table, by what became of them."""

    total: int
    encoded: int
    by_reason: dict[str, int]
    """Without features; most frequent reason first."""
    declared_hours: float
    """Of the videos that the manifest accepted, as their headers say."""
    encoded_hours: float
    truncated: int
    """Encoded, though shorter than their headers declare."""
    worst: list[dict]
    """The first rejected videos: video_id, stage, reason, message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFacts:
    """The feature shards."""

    shards: int
    vectors: int
    tar_bytes: int
    recipe: Recipe
    provenance: dict


@dataclass(frozen=True, slots=True, kw_only=True)
class BagFacts:
    """The bags of all shards."""

    train_videos: int
    val_videos: int
    clips: int
    captions: int
    vocabulary_size: int
    clips_by_bag_size: list[int]
    """Clips whose bag holds 0, 1, 2, ... captions."""
    left_out: dict[str, int]
    """Captions, clips and videos that are in no bag, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything; a part whose stage has not run is None or empty."""

    videos: VideoFacts
    captions: CaptionSummary
    features: FeatureFacts
    bags: BagFacts | None
    steps: list[dict]
    """Training lines of metrics.jsonl."""
    validations: list[dict]
    """Validation lines of metrics.jsonl."""
    retrieval: dict | None
    settings: dict[str, dict]
    versions: dict[str, str]


def gather(results: Path, worst_videos: int) -> Facts:
    """Read what the shards of the plan, training and evaluation left in `results`.

    Raises:
        FileNotFoundError: there is no plan.
        ValueError: a file is cut or foreign.
    """
    names = sorted(path.stem for path in (results / "plan").glob("*.tsv"))
    if not names:
        raise FileNotFoundError(f"{results}/plan lists no shards: run `snakemake --cores N` first")
    indexes = [_index_columns(results / f"shards/{name}.parquet") for name in names]
    bag_files = [results / f"bags/{name}.npz" for name in names]
    metrics = _metrics(results / "train/metrics.jsonl")
    tested = results / "evaluate/retrieval.json"
    return Facts(
        videos=_videos(results, names, [columns for columns, _ in indexes], worst_videos),
        captions=read_caption_summary(results / "captions/summary.json"),
        features=_features(indexes),
        bags=_bags(bag_files) if all(path.exists() for path in bag_files) else None,
        steps=[entry for entry in metrics if "split" not in entry],
        validations=[entry for entry in metrics if entry.get("split") == "val"],
        retrieval=read_json(tested) if tested.exists() else None,
        settings=_settings(results / "settings"),
        versions=_versions(),
    )


def _index_columns(path: Path) -> tuple[dict[str, list], dict]:
    names = ("status", "decoded_seconds", "truncated", "num_vectors")
    return read_table(path, {name: shard.SCHEMA[name] for name in names}, version=shard.VERSION)


def _videos(
    results: Path, names: list[str], indexes: list[dict[str, list]], worst_videos: int
) -> VideoFacts:
    seconds, encoded, truncated, total = 0.0, 0, 0, 0
    for columns in indexes:
        for status, length, cut in zip(
            columns["status"], columns["decoded_seconds"], columns["truncated"], strict=True
        ):
            total += 1
            if status == "encoded":
                encoded, seconds, truncated = encoded + 1, seconds + length, truncated + cut
    with open(results / "rejected.csv", newline="", encoding="utf-8") as file:
        rejected = list(csv.DictReader(file))
    return VideoFacts(
        total=total,
        encoded=encoded,
        by_reason=dict(Counter(row["reason"] for row in rejected).most_common()),
        declared_hours=_declared_hours(results, names),
        encoded_hours=seconds / 3600,
        truncated=truncated,
        worst=rejected[:worst_videos],
    )


def _declared_hours(results: Path, names: list[str]) -> float:
    columns = ("status", "duration_seconds")
    schema = {name: manifest.SCHEMA[name] for name in columns}
    seconds = 0.0
    for name in names:
        path = results / f"manifest/{name}.parquet"
        table, _ = read_table(path, schema, version=manifest.VERSION)
        pairs = zip(table["status"], table["duration_seconds"], strict=True)
        seconds += sum(length for status, length in pairs if status == "accepted")
    return seconds / 3600


def _features(indexes: list[tuple[dict[str, list], dict]]) -> FeatureFacts:
    described = indexes[0][1]
    return FeatureFacts(
        shards=len(indexes),
        vectors=sum(sum(columns["num_vectors"]) for columns, _ in indexes),
        tar_bytes=sum(about["tar_bytes"] for _, about in indexes),
        recipe=Recipe.from_dict(described["recipe"]),
        provenance=described["provenance"],
    )


def _bags(paths: list[Path]) -> BagFacts:
    counts: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    splits: Counter[int] = Counter()
    words = 0
    for path in paths:
        bags = read_bags(path)
        counts.update(bags.metadata["counts"])
        sizes.update(dict(enumerate(bags.metadata["clips_by_bag_size"])))
        splits.update(bags.video_split.tolist())
        words = bags.metadata["vocabulary_size"]
    return BagFacts(
        train_videos=splits[TRAIN],
        val_videos=splits[VAL],
        clips=counts.pop("clips", 0),
        captions=counts.pop("captions", 0),
        vocabulary_size=words,
        clips_by_bag_size=[sizes[size] for size in range(max(sizes, default=0) + 1)],
        left_out={name: n for name, n in sorted(counts.items()) if name != "videos" and n},
    )


def _metrics(path: Path) -> list[dict]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not whole: {error}: run -R train") from None


def _settings(folder: Path) -> dict[str, dict]:
    paths = {section: folder / f"{section}.json" for section in SECTIONS}
    return {section: read_json(path) for section, path in paths.items() if path.exists()}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("bagpipe", *LIBRARIES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
