"""The demo's committed script: what it says, and what is no script."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipeline.demo_script import (
    LATEST_SECONDS,
    SMALL_TALK,
    make_script,
    read_script,
    write_script,
)
from pipeline.formats.files import write_csv

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "config/demo"


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_committed_files_are_what_the_script_writes(tmp_path):
    write_script(tmp_path)
    for name in ("steps.csv", "captions.csv", "heldout.csv", "videos.csv"):
        assert (tmp_path / name).read_bytes() == (SCRIPT / name).read_bytes(), name


def test_the_script_reads_back_as_it_was_made():
    assert read_script(SCRIPT / "steps.csv") == make_script()


def test_there_are_48_videos_with_many_kinds_of_steps():
    script = make_script()
    texts = {step.text for steps in script.values() for step in steps}
    assert len(script) == 48
    assert len(texts) >= 40
    for steps in script.values():
        for before, after in pairwise(steps):
            assert before.end <= after.start
            assert before.end - before.start == pytest.approx(3.0)


def test_held_out_clips_are_the_true_steps_of_validation_videos_and_all_differ():
    split = {row["video_id"]: row["split"] for row in read_csv(SCRIPT / "videos.csv")}
    held_out = read_csv(SCRIPT / "heldout.csv")
    truth = {
        (step.video_id, step.start, step.end, step.text)
        for steps in make_script().values()
        for step in steps
        if split[step.video_id] == "val"
    }
    found = {(r["video_id"], float(r["start"]), float(r["end"]), r["text"]) for r in held_out}
    assert found == truth
    assert len(held_out) == len({row["text"] for row in held_out}) == 96


def test_each_step_is_spoken_early_or_late_and_each_video_has_small_talk():
    captions: dict[str, list[dict]] = {}
    for row in read_csv(SCRIPT / "captions.csv"):
        captions.setdefault(row["video_id"], []).append(row)
    shifts = []
    for video_id, steps in make_script().items():
        chat = [row for row in captions[video_id] if row["text"] in SMALL_TALK]
        spoken = [row for row in captions[video_id] if row["text"] not in SMALL_TALK]
        assert len(chat) >= 1
        assert len(spoken) == len(steps)
        for step in steps:
            starts = np.array([float(row["start"]) for row in spoken])
            shifts.append(np.abs(starts - step.start).min())
            early = max(0.0, step.start - LATEST_SECONDS - 0.01)
            assert ((starts >= early) & (starts <= step.start + LATEST_SECONDS + 0.01)).any()
    assert np.mean(shifts) > 0.3  # not simply the truth


def test_an_unknown_colour_is_named_with_those_that_are_known(tmp_path):
    columns = ["video_id", "start", "end", "colour", "shape", "motion"]
    write_csv(tmp_path / "steps.csv", columns, [("a", 0, 3, "beige", "ring", "grows")])
    with pytest.raises(ValueError, match="colour 'beige', allowed: red, green"):
        read_script(tmp_path / "steps.csv")


def test_a_file_that_is_no_script_is_refused(tmp_path):
    write_csv(tmp_path / "steps.csv", ["video_id", "start", "text"], [("a", 0, "x")])
    with pytest.raises(ValueError, match="no script of the demo"):
        read_script(tmp_path / "steps.csv")
