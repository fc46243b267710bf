"""The estimate for a set agrees with what encoding it takes, and says how sure it is."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import re
import statistics

import pytest
import torch

from pipeline.formats.files import write_json
from pipeline.formats.recipe import PRESETS
from pipeline.formats.shard import read_index
from pipeline.formats.videos import read_videos
from pipeline.pixels import Geometry
from pipeline.tools.estimate import Cost, Sample, main, total
from pipeline.video import VideoReader
from tests.small_shards import SETTINGS, accepted, encode, outputs_in
from tests.stand_ins import Means
from tests.videos import steady, write_video


class GoneWhenUnpickled(Geometry):
    """Ends the process that it is sent to."""

    def __reduce__(self):
        return os._exit, (7,)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A table of six videos of 1 to 6 s, one that is none, one that is gone and one removed."""
    folder = tmp_path_factory.mktemp("set")
    paths = [write_video(folder / f"{k}.mp4", steady(25 * k)) for k in range(1, 7)]
    (folder / "page.mp4").write_text("<html>")
    rows = [f"{path.stem},{path}" for path in [*paths, folder / "page.mp4", folder / "gone.mp4"]]
    (folder / "videos.csv").write_text("\n".join(["video_id,path", *rows, "removed,", ""]))
    write_json(folder / "encode.json", dataclasses.asdict(SETTINGS))
    return folder


@pytest.fixture
def estimate(project, capsys):
    """Run the command; its lines by their first word, as (value, unit, rest)."""
    threads = torch.get_num_threads()

    def call(*flags):
        files = ["--videos", project / "videos.csv", "--settings", project / "encode.json"]
        main([str(word) for word in (*files, "--batch", 2, "--threads", 1, *flags)])
        return capsys.readouterr().out

    yield call
    torch.set_num_threads(threads)


def value(text: str, name: str) -> float:
    return float(re.search(rf"^{name} +(\S+)", text, re.MULTILINE)[1])


def test_the_whole_table_is_counted_exactly(project, estimate, tmp_path):
    text = estimate("--device", "cpu")
    counts = "9 of 9 videos sampled: 6 usable, 1 missing, 1 removed, 1 unreadable\n"
    assert text.startswith(counts)
    videos = [project / f"{k}.mp4" for k in range(1, 7)]
    clips = 0
    for path in videos:
        reader = VideoReader(path, sampling=SETTINGS.grid, geometry=Geometry(32))
        clips += sum(1 for _ in reader.windows())
    assert value(text, "clips") == clips
    assert value(text, "video") == pytest.approx(21 / 3600, rel=0.01)
    assert "core-hours" in re.search("^network.*", text, re.MULTILINE)[0]
    assert all(line.count("± 0%") == 1 for line in text.splitlines()[1:])


def test_the_bytes_are_those_of_a_shard(project, estimate, tmp_path):
    class Wide(Means):
        feature_dim = 1024

        def __call__(self, windows_BTHWC):
            return torch.zeros(len(windows_BTHWC), 1024)

    rows = [accepted(project / f"{k}.mp4", str(k), float(k)) for k in range(1, 7)]
    encode(rows, tmp_path / "out", encoder=Wide())
    tar, index = outputs_in(tmp_path / "out")
    assert len(read_index(index).rows) == 6
    found = value(estimate("--clips-per-second", 10), "shards") * 1e9
    assert found == pytest.approx(tar.stat().st_size, rel=0.1)


def test_a_given_speed_gives_gpu_hours(estimate):
    text = estimate("--clips-per-second", 100)
    assert "GPU-hours" in text
    assert value(text, "network") == pytest.approx(value(text, "clips") / 100 / 3600, rel=1e-3)
    assert "100 clips/s as given" in text


def test_a_sample_is_drawn_from_the_seed_and_says_its_spread(estimate):
    flags = ["--sample", 5, "--clips-per-second", 10]
    one, same = (value(estimate(*flags, "--seed", 1), "clips") for _ in range(2))
    assert one == same
    texts = [estimate(*flags, "--seed", seed) for seed in range(2, 5)]
    assert len({value(text, "clips") for text in texts}) > 1
    assert "5 of 9 videos sampled" in texts[0]
    assert re.search(r"^clips .* ± [1-9]\d*%$", texts[0], re.MULTILINE)
    assert "± unknown" in estimate("--sample", 1, "--seed", 3, "--clips-per-second", 10)


def test_the_first_seconds_stand_for_the_rest(project):
    grid = PRESETS["half-hertz"]
    sample = Sample(grid, Geometry(32), 1024, seconds=2)
    (entry,) = [e for e in read_videos(project / "videos.csv") if e.video_id == "6"]
    (cost,) = sample.measure([entry], keep=5)
    assert len(sample.windows) == 1
    assert cost.video_seconds == pytest.approx(6, abs=0.1)
    assert cost.clips == 3
    assert cost.decode_seconds > 0


def test_a_video_that_hangs_or_kills_its_process_costs_nothing_but_its_place(project, tmp_path):
    """A decoder that the process cannot even begin is as lost as one that libav takes with it."""
    grid = PRESETS["half-hertz"]
    entries = [e for e in read_videos(project / "videos.csv") if e.video_id in {"5", "6"}]
    sample = Sample(grid, GoneWhenUnpickled(32), 1024, seconds=2)
    assert sample.measure(entries, keep=5) == [Cost(0, 0, 0, 0)] * 2
    assert sample.faults == {"crashed": 2}


def test_the_interval_holds_the_truth_nineteen_times_in_twenty():
    rng = random.Random(0)
    costs = [Cost(0, rng.lognormvariate(0, 0.5), 0, 0) for _ in range(400)]
    truth = sum(cost.clips for cost in costs)
    inside, spreads = 0, []
    for _ in range(400):
        found, half = total(rng.sample(costs, 60), lambda c: c.clips, 400)
        inside += abs(found - truth) <= half
        spreads.append(found)
    assert 0.9 < inside / 400 < 0.99
    assert statistics.mean(spreads) == pytest.approx(truth, rel=0.02)
    assert total(costs, lambda c: c.clips, 400) == (pytest.approx(truth), 0)
    assert total(costs[:1], lambda c: c.clips, 400)[1] == math.inf


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sample", 0], "--sample is 0, must be above 0"),
        (["--clips-per-second", -1], "--clips-per-second is -1.0, must be above 0"),
        (["--videos", "none.csv"], "none.csv does not exist"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(estimate, flags, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        estimate(*flags)


def test_a_table_without_a_good_video_is_refused(project, estimate, tmp_path):
    (tmp_path / "videos.csv").write_text(f"video_id,path\na,{project}/page.mp4\n")
    with pytest.raises(ValueError, match="none of 1 videos decodes: 1 unreadable"):
        estimate("--videos", tmp_path / "videos.csv")
    (tmp_path / "videos.csv").write_text("video_id,path\n")
    with pytest.raises(ValueError, match="lists no video"):
        estimate("--videos", tmp_path / "videos.csv")
