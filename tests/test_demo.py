"""The demo: its drawn videos, and what training on it reaches."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline import demo
from pipeline.demo_script import (
    Step,
    make_script,
)
from pipeline.formats.bags import ARRAYS, TRAIN, read_bags, write_bags
from pipeline.formats.files import write_csv

ROOT = Path(__file__).resolve().parents[1]
RED = Step("short", 0.5, 1.5, "red", "circle", "slides left")


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def decode(path: Path) -> np.ndarray:
    """All frames of a video: [T, H, W, 3] uint8."""
    with av.open(path) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


# --- the videos ---


def test_a_step_is_drawn_at_its_time_in_its_colour_and_moves(tmp_path):
    demo.draw_video(tmp_path / "a.mp4", [RED])
    frames = decode(tmp_path / "a.mp4").astype(int)
    assert frames.shape == (30, demo.HEIGHT, demo.WIDTH, 3)
    red = (frames[..., 0] > 150) & (frames[..., 1] < 110)
    shown = red.any(axis=(1, 2))
    assert shown.tolist() == [6 <= index < 18 for index in range(30)]
    columns = [np.flatnonzero(mask.any(axis=0)).mean() for mask in red[6:18]]
    assert (np.diff(columns) < 0).all()


@pytest.mark.parametrize("shape", ["circle", "triangle", "cross", "ring"])
def test_shapes_and_motions_differ_in_their_pixels(shape):
    pictures = {}
    for motion in demo_motions():
        step = replace(RED, shape=shape, motion=motion)
        pictures[motion] = np.stack(list(demo.draw_frames([step])))[6:18].astype(int)
    for first in pictures:
        assert (pictures[first].max(axis=(1, 2, 3)) > 200).all()
        for second in pictures:
            if first != second:
                assert np.abs(pictures[first] - pictures[second]).mean() > 1


def demo_motions() -> list[str]:
    """Those that the script uses."""
    return sorted({step.motion for steps in make_script().values() for step in steps})


def render(tmp_path: Path, ids: list[str], script: str = "short") -> Path:
    """Render a table of `ids` under tmp_path/out."""
    columns = ["video_id", "start", "end", "colour", "shape", "motion"]
    write_csv(tmp_path / "steps.csv", columns, [(script, 0.5, 1.5, "red", "ring", "grows")])
    rows = [(name, f"{tmp_path}/out/{name}.mp4") for name in ids]
    rows += [("broken-missing", f"{tmp_path}/elsewhere/broken-missing.mp4"), ("removed", "")]
    write_csv(tmp_path / "videos.csv", ["video_id", "path"], rows)
    arguments = [f"--script={tmp_path}/steps.csv", f"--videos={tmp_path}/videos.csv"]
    demo.main([*arguments, f"--output={tmp_path}/out"])
    return tmp_path / "out"


def test_the_same_script_gives_the_same_bytes(tmp_path):
    first = (render(tmp_path, ["short"]) / "short.mp4").read_bytes()
    assert (render(tmp_path, ["short"]) / "short.mp4").read_bytes() == first


def test_the_broken_videos_are_broken_as_their_names_say(tmp_path):
    out = render(tmp_path, ["short", *demo.BREAKERS])
    assert (out / "broken-empty.mp4").stat().st_size == 0
    assert (out / "broken-webpage.mp4").read_text().startswith("<!DOCTYPE html>")
    with av.open(out / "broken-audio.mp4") as file:
        assert [stream.type for stream in file.streams] == ["audio"]
    whole, cut = decode(out / "short.mp4"), out / "broken-truncated.mp4"
    with av.open(cut) as file:  # its header is whole
        assert float(file.duration / av.time_base) == pytest.approx(len(whole) / 12)
    assert cut.stat().st_size < 0.3 * (out / "short.mp4").stat().st_size
    assert not (tmp_path / "elsewhere").exists()


def test_a_video_without_a_script_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no steps for the video 'unknown'"):
        render(tmp_path, ["unknown"])


# --- what comes out ---


@pytest.mark.demo
@pytest.mark.timeout(1800)
def test_training_finds_what_captions_mean(demo_results):
    found = json.loads((demo_results / "evaluate/heldout.json").read_text())
    assert found["num_pairs"] == 96
    for direction in ("text_to_video", "video_to_text"):
        assert found[direction]["R@10"] >= 3 * found["chance"]["R@10"]


@pytest.mark.demo
@pytest.mark.timeout(1800)
def test_the_broken_videos_are_rows_with_their_reasons(demo_results):
    rows = read_csv(demo_results / "rejected.csv")
    assert {row["video_id"]: row["reason"] for row in rows} == {
        "broken-empty": "empty",
        "broken-truncated": "truncated",
        "broken-audio": "no_video_stream",
        "broken-webpage": "unreadable",
        "broken-missing": "missing",
    }


@pytest.mark.demo
@pytest.mark.timeout(1800)
def test_captions_shuffled_across_videos_teach_nothing(demo_results, tmp_path):
    controls = [train_control(demo_results, tmp_path / str(seed), seed) for seed in range(1, 4)]
    for direction in ("text_to_video", "video_to_text"):
        found = [control[direction]["R@10"] for control in controls]
        assert np.mean(found) <= 2 * controls[0]["chance"]["R@10"], found


def train_control(results: Path, folder: Path, seed: int) -> dict:
    """Train as the demo does, but on captions shuffled across videos; test on the true ones."""
    shuffle_captions(results / "bags", folder / "bags", seed=seed)
    shared = ["--plan", results / "plan", "--shards", results / "shards"]
    shared += ["--vocabulary", results / "vocabulary.txt", "--model", folder / "model.pt"]
    run_stage(
        "train", *shared[:-2], "--settings", results / "settings/train.json",
        "--bags", folder / "bags", "--state", folder / "state",
        "--output", folder / "model.pt", "--metrics", folder / "metrics.jsonl",
        "--backend", "gloo", "--validate-every", 0, "--save-every", 100_000,
    )  # fmt: skip
    run_stage(
        "evaluate", *shared, "--settings", results / "settings/evaluate.json",
        "--protocol", "heldout", "--bags", results / "bags", "--output", folder / "found.json",
    )  # fmt: skip
    return json.loads((folder / "found.json").read_text())


def run_stage(stage: str, *arguments: object) -> None:
    """Run a stage of the trainer in one process, as by hand."""
    command = [sys.executable, "-m", f"trainer.{stage}", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200)


def shuffle_captions(source: Path, target: Path, *, seed: int) -> None:
    """Copy bag files with the training captions' words dealt out anew over all their videos."""
    bags = {path.name: read_bags(path) for path in sorted(source.glob("*.npz"))}
    places = [
        (name, row)
        for name, shard in bags.items()
        for row in np.flatnonzero(shard.video_split[shard.cap_video] == TRAIN)
    ]
    words = ("cap_ids", "cap_lens", "cap_hash")
    dealt = {name: {array: np.array(getattr(shard, array)) for array in words}
             for name, shard in bags.items()}  # fmt: skip
    order = np.random.default_rng(seed).permutation(len(places))
    moved = 0
    for (name, row), (from_name, from_row) in zip(places, (places[i] for i in order), strict=True):
        for array in words:
            dealt[name][array][row] = getattr(bags[from_name], array)[from_row]
        videos = bags[name].cap_video[row], bags[from_name].cap_video[from_row]
        moved += name != from_name or videos[0] != videos[1]
    assert moved > 0.9 * len(places)
    for name, shard in bags.items():
        arrays = {array: getattr(shard, array) for array in ARRAYS}
        write_bags(target / name, type(shard)(**(arrays | dealt[name]), metadata=shard.metadata))
