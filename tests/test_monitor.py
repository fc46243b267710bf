"""metrics.jsonl stays consistent when a run is continued; means and remaining time are right."""

from __future__ import annotations

import errno
import logging
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from trainer.monitor import Meter, MetricsLog, Progress, read_metrics


def test_lines_beyond_the_resumed_step_are_cut(tmp_path):
    log = MetricsLog(tmp_path, resumed_step=0)
    for step in (1, 2, 3):
        log.write({"step": step, "loss": 1.0})
    log.write({"step": 3, "split": "val", "R@10": 0.5})
    log.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "lo')  # killed while writing
    log = MetricsLog(tmp_path, resumed_step=2)
    log.write({"step": 3, "loss": 2.0})
    log.publish(tmp_path / "out/metrics.jsonl")
    log.close()
    entries = read_metrics(tmp_path / "out/metrics.jsonl")
    assert [(entry["step"], entry["loss"]) for entry in entries] == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    log = MetricsLog(tmp_path, resumed_step=0)
    log.write({"step": 1, "loss": math.nan})
    log.close()
    assert read_metrics(log.path) == [{"step": 1, "loss": None}]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_line_for_which_there_is_no_room_names_the_file_and_leaves_the_others(tmp_path):
    log = MetricsLog(tmp_path, resumed_step=0)
    log.write({"step": 1, "loss": 1.0})
    room = log.path.stat().st_size + 10
    with full_disk(room), pytest.raises(OSError, match=r"File too large: '.*metrics\.jsonl'"):
        log.write({"step": 2, "loss": 2.0})
    assert read_metrics(log.path) == [{"step": 1, "loss": 1.0}]
    assert [e["step"] for e in read_metrics(MetricsLog(tmp_path, resumed_step=9).path)] == [1]


class FullBoard:
    """A writer of TensorBoard files whose disk is full, as that library's threads tell it."""

    log_dir = "runs/board"

    def add_scalar(self, *_):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_names_tensorboards_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.monitor._tensorboard", lambda *_: FullBoard())
    log = MetricsLog(tmp_path, resumed_step=0)
    with pytest.raises(OSError, match="No space left on device: 'runs/board'"):
        log.write({"step": 1, "loss": 1.0})


def test_no_file_is_no_entries(tmp_path):
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_meter_gives_means_since_the_last_line():
    meter = Meter(torch.zeros(()))
    meter.add(torch.tensor(2.0), clips=10)
    meter.add(torch.tensor(4.0), clips=10)
    summary = meter.summary()
    assert summary["loss"] == 3.0
    assert summary["clips_per_second"] == pytest.approx(20 / (2 * summary["step_seconds"]))
    meter.add(torch.tensor(7.0), clips=1)
    assert meter.summary()["loss"] == 7.0


def test_steps_without_a_clip_have_time_and_no_loss():
    meter = Meter(torch.zeros(()))
    for loss in (2.0, None, 4.0):
        meter.add(None if loss is None else torch.tensor(loss), clips=10)
    assert meter.summary()["loss"] == 3.0
    meter.add(None, clips=0)
    line = meter.summary()
    assert "loss" not in line
    assert line["step_seconds"] > 0


def test_times_are_those_of_this_start_s_steps_alone(monkeypatch):
    """Start-up, validation and saving are no step, nor are the steps before a restart."""
    now = [100.0]
    monkeypatch.setattr("trainer.monitor.time.perf_counter", lambda: now[0])
    before = Meter(torch.zeros(()))
    for _ in range(3):
        before.add(torch.tensor(2.0), clips=10)
    meter = Meter(torch.zeros(()))
    meter.restore(before.state())
    now[0] += 50.0
    meter.start_clock()
    now[0] += 0.5
    meter.add(torch.tensor(6.0), clips=10)
    with meter.paused():
        now[0] += 7.0
    now[0] += 0.5
    meter.add(torch.tensor(6.0), clips=10)
    line = meter.summary()
    assert line == {"loss": pytest.approx(18 / 5), "step_seconds": 0.5, "clips_per_second": 20.0}


def test_a_continued_meter_gives_the_mean_of_all_its_steps():
    meter = Meter(torch.zeros(()))
    meter.add(torch.tensor(2.0), clips=10)
    continued = Meter(torch.zeros(()))
    continued.restore(meter.state())
    continued.add(torch.tensor(4.0), clips=10)
    assert continued.summary()["loss"] == 3.0


def test_progress_speaks_on_rank_0_alone(caplog):
    with caplog.at_level(logging.INFO):
        for speaks in (True, False):
            with Progress(10, 20, speaks=speaks) as progress:
                progress.step()
                progress.say({"step": 11, "loss": 1.23456789})
    assert len(caplog.records) == 1
    assert "step 11 loss 1.235 (of 20," in caplog.text
