"""The verdict names what a step really waits for."""

from __future__ import annotations

import math
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.synthetic_bags import make_results
from trainer.data import StepData
from trainer.distributed import World
from trainer.monitor import read_metrics
from trainer.stopwatch import PARTS
from trainer.train import main
from trainer.verdict import StepTimes, gpu_utilization, verdict


def times(**seconds: float) -> np.ndarray:
    return np.array([[seconds.get(name, 0.0) for name in PARTS]])


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
