"""The verdict names what a step really waits for; parts of a timeline add up to the whole."""

from __future__ import annotations

import math
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.ranks import run_ranks
from tests.synthetic_bags import make_results
from trainer.data import StepData
from trainer.distributed import World
from trainer.monitor import read_metrics
from trainer.stopwatch import PARTS, Stopwatch
from trainer.train import main
from trainer.verdict import StepTimes, gpu_utilization, verdict


def times(**seconds: float) -> np.ndarray:
    return np.array([[seconds.get(name, 0.0) for name in PARTS]])


@pytest.fixture
def passes(monkeypatch):
    """A clock that stands still until it is told how many seconds pass."""
    now = [100.0]
    monkeypatch.setattr("trainer.stopwatch.time.perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_parts_are_exclusive_and_add_up(passes):
    watch = Stopwatch()
    watch.summary()
    with watch.part("loss"):
        passes(2)
        with watch.part("gather"):
            passes(3)
        passes(1)
    with watch.part("waiting"), watch.part("gather", within=("waiting",)):
        passes(5)
    passes(7)
    parts = watch.summary()
    assert {name: took for name, took in parts.items() if took} == {
        "loss": 3, "gather": 3, "waiting": 5, "other": 7
    }  # fmt: skip


def test_what_follows_the_last_gradient_is_the_exchange(passes):
    watch = Stopwatch()
    watch.summary()
    with watch.part("backward"):
        for _ in range(3):
            passes(1)
            watch.split("exchange")
        passes(5)
    parts = watch.summary()
    assert {name: took for name, took in parts.items() if took} == {"backward": 3, "exchange": 5}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"data": 38, "video": 62}, "data-bound: 38% of the step waits for data; raise run.train"),
        ({"gather": 10, "exchange": 20, "loss": 70}, "network-bound: 30% of the step"),
        ({"data": 10, "video": 30, "loss": 60}, "compute-bound: 90% of the step computes (loss 60"),
    ],
)
def test_verdicts(seconds, words):
    assert words in verdict(times(**seconds))


def test_the_slowest_rank_is_named():
    rows = np.concatenate([times(waiting=40, loss=60), times(waiting=1, loss=99)])
    rows = np.concatenate([rows, times(waiting=40, loss=60)])
    assert "waits for the slowest rank, mostly rank 1" in verdict(rows)


def test_a_loader_slowed_by_a_known_time_is_found(tmp_path, monkeypatch):
    """Its seconds, and its share of the step, whatever else this machine does."""
    load = StepData.__getitem__
    loaded = []

    def load_slowly(data: StepData, step: int):
        computed = time.monotonic() - loaded[-1] if loaded else 0.0
        time.sleep(max(0.1, 2 * computed))
        batch = load(data, step)
        loaded.append(time.monotonic())
        return batch

    monkeypatch.setattr(StepData, "__getitem__", load_slowly)
    results = make_results(tmp_path)
    main(results.train_arguments(log_every=4, validate_every=0))
    lines = [e for e in read_metrics(tmp_path / "train/metrics.jsonl") if "verdict" in e]
    assert len(lines) == 2
    for line in lines:
        total = sum(line[f"seconds_{name}"] for name in PARTS)
        assert line["seconds_data"] >= 0.1
        share = line["seconds_data"] / total
        assert line["verdict"].startswith(f"data-bound: {share:.0%} of the step waits for data")
        assert total == pytest.approx(line["step_seconds"], rel=0.5)
        assert line["peak_memory_gb"] > 0.01
    assert lines[0]["clips_per_second_ranks"][0] > 0


def line_on_a_gpu() -> dict:
    watched = StepTimes()
    watched.add(clips=4)
    return watched.line(World(rank=0, size=1, device=torch.device("cuda"), cpu_group=None))


def test_how_busy_a_gpu_is_comes_with_the_line_where_it_is_known(monkeypatch):
    class NVMLError(Exception):
        pass

    def not_supported(_):
        raise NVMLError

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "gpu_utilization" not in line_on_a_gpu()
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=NVMLError))
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 83)
    assert line_on_a_gpu()["gpu_utilization"] == 83.0
    monkeypatch.setattr(torch.cuda, "utilization", not_supported)
    assert "gpu_utilization" not in line_on_a_gpu()
    assert math.isnan(gpu_utilization(torch.device("cpu")))


def slow_rank(world: World, _) -> dict:
    """A step in which rank 1 computes longer; both then meet."""
    world.watch.summary()
    if world.rank == 1:
        time.sleep(0.3)
    with world.watch.part("waiting"):
        world.gather_integers([1])
    world.sum(torch.zeros(3))
    return world.watch.summary()


@pytest.mark.timeout(90)
def test_waiting_for_a_slow_rank_is_no_gathering(tmp_path):
    first, second = run_ranks(slow_rank, 2, None, tmp_path)
    assert first["waiting"] > 0.2
    assert second["waiting"] < first["waiting"]
    assert "gather" in first
