"""The linear probe: separable features are told apart, labels at random are not, C sees no test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.files import write_csv
from pipeline.formats.plan import PlannedVideo, write_planned_videos
from pipeline.formats.shard import EncodedVideo
from pipeline.formats.shard_writer import write_shard
from tests.tiny_results import FEATURE_DIM, RECIPE, video_facts
from trainer import probe

ODD = "Brushing [NEW] UPDATED!!!! & more #1"


def make_videos(root: Path, classes: int, *, separation: float, per_class: int = 12) -> list[tuple]:
    """Shards of videos whose features lie around their class's centre; return the list's rows."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, FEATURE_DIM)) * separation
    videos, rows = [], []
    for number in range(classes * per_class):
        label, place = number % classes, number // classes
        video_id = ODD if number == 0 else f"video {number}"
        features = centres[label] + rng.normal(size=(6, FEATURE_DIM))
        videos.append(EncodedVideo(facts=video_facts(video_id), features=features.astype("<f2")))
        splits = (1 if place < 8 else 2 if place < 11 else 0, 2 if place < 4 else 1)
        rows.append((f"{video_id}.avi", f"class {label}", *splits))
    for name, part in (("00000", videos[::2]), ("00001", videos[1::2])):
        planned = [PlannedVideo(v.facts.video_id, "x", "", 1, 1) for v in part]
        write_planned_videos(root / f"plan/{name}.tsv", planned)
        tar, index = root / f"shards/{name}.tar", root / f"shards/{name}.parquet"
        write_shard(tar, index, part, RECIPE, {"device": "cpu"})
    return rows


def run_probe(root: Path, rows: list[tuple], *more: str) -> dict:
    """Run the command on a list with two splits."""
    write_csv(root / "list.csv", ["video_id", "label", "split1", "split2"], rows)
    places = {"list": "list.csv", "plan": "plan", "shards": "shards", "output": "probe.json"}
    probe.main([*(f"--{name}={root / place}" for name, place in places.items()), *more])
    return json.loads((root / "probe.json").read_text())


@pytest.mark.parametrize("classes", [2, 4])
def test_separable_classes_are_told_apart_in_every_split(tmp_path, classes):
    pytest.importorskip("sklearn")
    result = run_probe(tmp_path, make_videos(tmp_path, classes, separation=6.0))
    assert [split["top1"] for split in result["splits"].values()] == [1.0, 1.0]
    assert result["mean_top1"] == 1.0
    assert result["chance"] == 1 / classes
    first = result["splits"]["split1"]
    assert (first["train_videos"], first["test_videos"]) == (8 * classes, 3 * classes)
    assert result["missing"] == []


def test_labels_without_meaning_are_guessed(tmp_path):
    pytest.importorskip("sklearn")
    rows = make_videos(tmp_path, 4, separation=0.0)
    result = run_probe(tmp_path, rows)
    assert result["mean_top1"] < 0.6
    accuracies = [split["top1"] for split in result["splits"].values()]
    assert result["mean_top1"] == pytest.approx(np.mean(accuracies))


def test_c_is_chosen_without_a_look_at_the_test_videos(tmp_path):
    pytest.importorskip("sklearn")
    rows = make_videos(tmp_path, 3, separation=1.0)
    first = run_probe(tmp_path, rows)["splits"]["split1"]
    other_label = {"class 0": "class 1", "class 1": "class 2", "class 2": "class 0"}
    turned = [(v, other_label[label] if s == 2 else label, s, t) for v, label, s, t in rows]
    other = run_probe(tmp_path, turned)["splits"]["split1"]
    assert first["held_out_top1"] == other["held_out_top1"]
    assert first["C"] == other["C"]
    assert first["top1"] > 0.5 > other["top1"]


def test_a_videos_rows_are_summed_before_its_class_is_said():
    class Said:
        classes_ = np.array(["a", "b", "c"])

        def decision_function(self, _):
            return np.array([[3.0, 0, 0], [0, 2.0, 0], [0, 2.0, 0], [0, 0, 1.0]])

    rows = probe.Rows(np.zeros((4, 1)), np.array([0, 0, 0, 1]))
    labels = np.array(["b", "a"])
    assert probe.accuracy(Said(), rows, labels, np.array([True, False])) == 1.0
    assert probe.accuracy(Said(), rows, labels, np.array([True, True])) == 0.5


def test_missing_videos_are_named_and_too_many_refused(tmp_path):
    pytest.importorskip("sklearn")
    rows = make_videos(tmp_path, 2, separation=6.0)
    rows.append(("nowhere.avi", "class 0", 1, 1))
    assert run_probe(tmp_path, rows)["missing"] == ["nowhere.avi"]
    with pytest.raises(ValueError, match=r"1 of 25 videos.*nowhere\.avi"):
        run_probe(tmp_path, rows, "--max-missing=0")
    with pytest.raises(ValueError, match="1 of 1 videos"):
        run_probe(tmp_path, rows[-1:], "--max-missing=1")


def test_a_list_that_is_none_is_refused(tmp_path):
    write_csv(tmp_path / "a.csv", ["video_id", "class"], [("x", "y")])
    with pytest.raises(ValueError, match="lacks the columns label, split1; found video_id, class"):
        probe.read_labels(tmp_path / "a.csv")
    write_csv(tmp_path / "b.csv", ["video_id", "label", "split1"], [("x", "y", 1), ("x", "y", 3)])
    with pytest.raises(ValueError, match="line 3"):
        probe.read_labels(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("video_id", "line"),
    [
        (b"x" * 140_000, r"a\.csv, row at line 3: field larger than field limit"),
        (b"caf\xe9", r"a\.csv is not a UTF-8 CSV file: .* can't decode byte 0xe9"),
    ],
)
def test_a_list_that_is_no_csv_is_one_line(tmp_path, video_id, line):
    (tmp_path / "a.csv").write_bytes(b"video_id,label,split1\na,b,1\n" + video_id + b",c,1\n")
    with pytest.raises(ValueError, match=line):
        probe.read_labels(tmp_path / "a.csv")


@pytest.mark.real
def test_the_published_list_has_the_published_splits(real_data):
    labels = probe.read_labels(real_data / "captions/milnce_csv/hmdb51.csv")
    assert len(labels.video_ids) == 6766
    for split in labels.splits.values():
        assert ((split == probe.TRAIN).sum(), (split == probe.TEST).sum()) == (3570, 1530)
