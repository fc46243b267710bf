"""A linear probe: how well a linear classifier tells labelled videos apart by features alone.

Reads   a list of labelled videos (video_id,label,split1,...: 1 train, 2 test, 0 neither, as
        HMDB51's is published), plan/ (which shards exist) and shards/
Writes  a JSON with the top-1 accuracy of each split and their mean
By hand `python -m trainer.probe --list hmdb51.csv --plan results/plan --shards results/shards
        --output results/probe/hmdb51.json`

Each feature row of a training video is a training example; a test video gets the class with the
largest sum of decision values over its rows. C is chosen on a part of the training videos.

Letters: V videos, R feature rows of all videos, F numbers of a row, K classes.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import sha256_of_file, write_json
from pipeline.formats.names import again
from pipeline.formats.recipe import Recipe
from pipeline.formats.shard import IndexRow, read_index, read_video
from pipeline.formats.tags import PROBE
from trainer.cli import run

TRAIN, TEST = 1, 2
C_VALUES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
HELD_OUT = 5
"""Every so many training videos of a class choose C."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Labels:
    """A list of labelled videos."""

    video_ids: list[str]
    label_V: np.ndarray
    """[V] str."""
    splits: dict[str, np.ndarray]
    """Name to [V] int: `TRAIN`, `TEST` or 0."""

    def keep(self, rows: list[int]) -> Labels:
        """Some of the videos."""
        splits = {name: values_V[rows] for name, values_V in self.splits.items()}
        return Labels([self.video_ids[row] for row in rows], self.label_V[rows], splits)


@dataclass(frozen=True, slots=True)
class Rows:
    """Features of videos."""

    features_RF: np.ndarray
    video_R: np.ndarray
    """[R] int: the number of the row's video."""


def read_labels(path: str | Path) -> Labels:
    """Read the list.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no CSV in UTF-8, a column is missing, or a split's value is none of 0, 1,
            2 (its line is named).
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"--list {path} does not exist")
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        try:
            names, rows = _rows_of(path, reader)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a UTF-8 CSV file: {error}") from None
        except csv.Error as error:
            raise ValueError(f"{path}, row at line {reader.line_num + 1}: {error}") from None
    splits = {name: np.array([int(row[name]) for row in rows], int) for name in names}
    return Labels([r["video_id"] for r in rows], np.array([r["label"] for r in rows]), splits)


def _rows_of(path: str | Path, reader: csv.DictReader) -> tuple[list[str], list[dict]]:
    """The names of the splits, and all rows."""
    found = reader.fieldnames or []
    names = [name for name in found if re.fullmatch(r"split\d+", name)]
    absent = [name for name in ("video_id", "label") if name not in found]
    absent += [] if names else ["split1"]
    if absent:
        raise ValueError(f"{path} lacks the columns {', '.join(absent)}; found {', '.join(found)}")
    rows = []
    for row in reader:
        if any(row[name] not in ("0", "1", "2") for name in names):
            raise ValueError(
                f"{path}, line {reader.line_num}: a split is none of 1 (train), 2 (test), 0"
            )
        rows.append(row)
    return names, rows


def locate(labels: Labels, indexes: dict[str, list[IndexRow]]) -> dict[int, tuple[str, IndexRow]]:
    """Row of the list to shard and place; an id may carry its file's suffix, as HMDB51's do."""
    places = {
        row.video_id: (name, row) for name, rows in indexes.items() for row in rows if row.encoded
    }
    found = {}
    for number, video_id in enumerate(labels.video_ids):
        stem = os.path.splitext(video_id)[0]
        place = places.get(video_id) or places.get(stem)
        if place:
            found[number] = place
    return found


def read_rows(places: list[tuple[str, IndexRow]], shards: Path) -> Rows:
    """All feature rows of the videos, in their order."""
    parts = []
    for name, place in places:
        tar = shards / f"{name}.tar"
        try:
            with open(tar, "rb") as file:
                array = read_video(file.fileno(), place)
        except ValueError as error:
            raise ValueError(f"{tar}: {error}; {again(tar)}") from None
        parts.append(array.astype(np.float32))
    counts = [len(part) for part in parts]
    return Rows(np.concatenate(parts), np.repeat(np.arange(len(parts)), counts))


def choose_c(rows: Rows, label_V: np.ndarray, train_V: np.ndarray) -> tuple[float, dict]:
    """The C that does best on held-out *training* videos (of equals the smallest), and all."""
    held_V = np.zeros(len(label_V), bool)
    generator = np.random.default_rng(0)
    for label in np.unique(label_V[train_V]):
        of_class = generator.permutation(np.flatnonzero(train_V & (label_V == label)))
        held_V[of_class[HELD_OUT - 1 :: HELD_OUT]] = True
    if not held_V.any():
        return 1.0, {}
    tried = {
        c: accuracy(fit(rows, label_V, train_V & ~held_V, c), rows, label_V, held_V)
        for c in C_VALUES
    }
    return max(tried, key=lambda c: (tried[c], -c)), tried


def fit(rows: Rows, label_V: np.ndarray, chosen_V: np.ndarray, c: float):
    """One linear classifier for each class against the rest, on standardised features."""
    try:
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import LinearSVC
    except ImportError:
        raise ValueError(
            "scikit-learn is not installed: in the clone, pip install -e '.[probe]'"
        ) from None
    chosen_R = chosen_V[rows.video_R]
    classifier = make_pipeline(
        StandardScaler(), LinearSVC(C=c, dual="auto", random_state=0, max_iter=5000)
    )
    return classifier.fit(rows.features_RF[chosen_R], label_V[rows.video_R[chosen_R]])


def accuracy(classifier, rows: Rows, label_V: np.ndarray, chosen_V: np.ndarray) -> float:
    """Top-1 of some videos: each gets the class with the largest sum over its rows."""
    decisions_RK = classifier.decision_function(rows.features_RF)
    if decisions_RK.ndim == 1:  # two classes share one decision
        decisions_RK = np.stack([-decisions_RK, decisions_RK], axis=1)
    sums_VK = np.zeros((len(label_V), decisions_RK.shape[1]))
    np.add.at(sums_VK, rows.video_R, decisions_RK)
    said_V = classifier.classes_[sums_VK.argmax(axis=1)]
    return float(np.mean(said_V[chosen_V] == label_V[chosen_V]))


def probe_split(rows: Rows, label_V: np.ndarray, split_V: np.ndarray) -> dict:
    """Choose C, train on all training videos, test on the test videos."""
    train_V, test_V = split_V == TRAIN, split_V == TEST
    if len(np.unique(label_V[train_V])) < 2 or not test_V.any():
        raise ValueError("a split needs training videos of two classes and a test video")
    c, tried = choose_c(rows, label_V, train_V)
    top1 = accuracy(fit(rows, label_V, train_V, c), rows, label_V, test_V)
    counts = {"train_videos": int(train_V.sum()), "test_videos": int(test_V.sum())}
    return {"top1": top1, "C": c, "held_out_top1": {f"{k:g}": v for k, v in tried.items()}} | counts


def open_shards(plan: Path, shards: Path) -> tuple[dict[str, list[IndexRow]], Recipe]:
    """The indexes of the plan's shards, which must be of one recipe."""
    names = sorted(path.stem for path in plan.glob("*.tsv"))
    if not names:
        raise FileNotFoundError(f"{plan} holds no plan: {again('plan')}")
    indexes = {name: read_index(shards / f"{name}.parquet") for name in names}
    recipes = {index.recipe.identity: index.recipe for index in indexes.values()}
    if len(recipes) > 1:
        raise ValueError(f"{shards} holds features of {len(recipes)} recipes: {again('encode')}")
    return {name: index.rows for name, index in indexes.items()}, next(iter(recipes.values()))


def probe(args: argparse.Namespace) -> dict:
    """Probe every split.

    Raises:
        ValueError: too many videos of the list lack features, or all do.
    """
    labels = read_labels(args.list)
    indexes, recipe = open_shards(args.plan, args.shards)
    found = locate(labels, indexes)
    missing = [v for number, v in enumerate(labels.video_ids) if number not in found]
    if not found or len(missing) > args.max_missing * len(labels.video_ids):
        raise ValueError(
            f"{len(missing)} of {len(labels.video_ids)} videos of {args.list} have no features"
            f" (--max-missing is {args.max_missing:g}): {', '.join(missing[:3])}"
        )
    rows = read_rows(list(found.values()), args.shards)
    kept = labels.keep(list(found))
    splits = {name: probe_split(rows, kept.label_V, s_V) for name, s_V in kept.splits.items()}
    _, counts = np.unique(kept.label_V, return_counts=True)
    return {
        "format": PROBE,
        "list": str(args.list),
        "list_sha256": sha256_of_file(args.list),
        "recipe": recipe.to_dict(),
        "recipe_identity": recipe.identity,
        "classifier": "LinearSVC, one against the rest, on standardised features; sums over rows",
        "classes": len(counts),
        "chance": 1 / len(counts),
        "videos": len(found),
        "missing": missing,
        "splits": splits,
        "mean_top1": float(np.mean([split["top1"] for split in splits.values()])),
    }


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandLine(
        prog="python -m trainer.probe",
        description="Feature shards and a list of labelled videos in, a linear probe's top-1 out.",
    )
    parser.add_argument("--list", type=Path, required=True, help="video_id,label,split1,...")
    parser.add_argument("--plan", type=Path, required=True, help="folder that names the shards")
    parser.add_argument("--shards", type=Path, required=True, help="folder of the feature shards")
    parser.add_argument("--output", type=Path, required=True, help="a JSON file")
    parser.add_argument("--max-missing", type=float, default=0.1, help="largest fraction missing")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Probe the features."""
    args = _arguments(argv)
    result = probe(args)
    write_json(args.output, result)
    for name, split in result["splits"].items():
        logger.info("%s: top-1 %.3f (C %g)", name, split["top1"], split["C"])
    logger.info("mean top-1 %.3f, chance %.3f", result["mean_top1"], result["chance"])


if __name__ == "__main__":
    run(main)
