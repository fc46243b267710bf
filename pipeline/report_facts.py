"""What the report says, gathered from the files of a results folder; no drawing, no page."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pandas as pd

from pipeline.formats import manifest, shard
from pipeline.formats.bags import TRAIN, VAL, read_bags
from pipeline.formats.caption_summary import CaptionSummary, read_caption_summary
from pipeline.formats.files import read_json
from pipeline.formats.names import again
from pipeline.formats.parquet import read_table
from pipeline.formats.plan import Unmatched, read_unmatched
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
    first_rejected: list[dict]
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
    unmatched: Unmatched
    features: FeatureFacts
    bags: BagFacts | None
    steps: list[dict]
    """Training lines of metrics.jsonl."""
    validations: list[dict]
    """Validation lines of metrics.jsonl."""
    tests: list[dict]
    """The result of each protocol, `heldout` first."""
    settings: dict[str, dict]
    versions: dict[str, str]


def gather(results: Path, rejected_rows: int) -> Facts:
    """Read what the shards of the plan, training and evaluation left in `results`.

    Raises:
        FileNotFoundError: there is no plan.
        ValueError: a file is cut or foreign.
    """
    names = sorted(path.stem for path in (results / "plan").glob("*.tsv"))
    if not names:
        raise FileNotFoundError(f"{results}/plan lists no shards: run `snakemake --cores N` first")
    columns = ["status", "decoded_seconds", "truncated", "num_vectors"]
    tables, abouts = zip(
        *(
            _table(results / f"shards/{name}.parquet", shard.SCHEMA, columns, shard.VERSION)
            for name in names
        ),
        strict=True,
    )
    index = pd.concat(tables)
    bag_files = [results / f"bags/{name}.npz" for name in names]
    metrics = _metrics(results / "train/metrics.jsonl")
    return Facts(
        videos=_videos(results, names, index, rejected_rows),
        captions=read_caption_summary(results / "captions/summary.json"),
        unmatched=read_unmatched(results / "plan"),
        features=_features(index, list(abouts)),
        bags=_bags(bag_files) if all(path.exists() for path in bag_files) else None,
        steps=[entry for entry in metrics if "split" not in entry],
        validations=[entry for entry in metrics if entry.get("split") == "val"],
        tests=_tests(results),
        settings=_settings(results / "settings"),
        versions=_versions(),
    )


def _table(
    path: Path, schema: dict[str, str], columns: list[str], version: str
) -> tuple[pd.DataFrame, dict]:
    """Some columns of one of our tables, with what its metadata say."""
    chosen = {name: schema[name] for name in columns}
    found, about = read_table(path, chosen, version=version)
    return pd.DataFrame(found, columns=columns), about


def _videos(results: Path, names: list[str], index: pd.DataFrame, rejected_rows: int) -> VideoFacts:
    columns = ["status", "duration_seconds"]
    paths = [results / f"manifest/{name}.parquet" for name in names]
    manifests = pd.concat(
        _table(path, manifest.SCHEMA, columns, manifest.VERSION)[0] for path in paths
    )
    # Ids such as `null` or `1e5` are texts.
    rejected = pd.read_csv(results / "rejected.csv", dtype=str, keep_default_na=False)
    encoded = index[index["status"] == "encoded"]
    accepted = manifests[manifests["status"] == "accepted"]
    return VideoFacts(
        total=len(index),
        encoded=len(encoded),
        by_reason=dict(Counter(rejected["reason"]).most_common()),
        declared_hours=float(accepted["duration_seconds"].sum()) / 3600,
        encoded_hours=float(encoded["decoded_seconds"].sum()) / 3600,
        truncated=int(encoded["truncated"].sum()),
        first_rejected=rejected.head(rejected_rows).to_dict("records"),
    )


def _features(index: pd.DataFrame, abouts: list[dict]) -> FeatureFacts:
    return FeatureFacts(
        shards=len(abouts),
        vectors=int(index["num_vectors"].sum()),
        tar_bytes=sum(about["tar_bytes"] for about in abouts),
        recipe=Recipe.from_dict(abouts[0]["recipe"]),
        provenance=abouts[0]["provenance"],
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
        raise ValueError(f"{path} is not whole: {error}: {again('train')}") from None


def _tests(results: Path) -> list[dict]:
    """Results of the protocols that the settings name; others are left over from older ones."""
    settings = results / "settings/evaluate.json"
    names = read_json(settings)["protocols"] if settings.exists() else {}
    chosen = sorted(filter(names.get, names), key=lambda name: (name != "heldout", name))
    paths = [results / f"evaluate/{name}.json" for name in chosen]
    return [read_json(path) for path in paths if path.exists()]


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
