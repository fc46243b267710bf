"""What decoding may use up, and what becomes of a video that wants more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.decode_limits import Limits
from pipeline.decode_pool import decode_all
from pipeline.decoding import Failed, Started, Window
from pipeline.formats.manifest import Reason
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry

SAMPLING = Sampling(frame_rate=8, frames=4, stride_seconds=0.5, tail="repeat")
LARGE = Geometry(frame_size=320)
"""Windows of 1.2 MB: more than a pipe holds, so no process runs far ahead of its reader."""


def limits(**changes) -> Limits:
    return Limits(**{"video_seconds": 60.0, "factor": 0.0, "videos_per_worker": 100} | changes)


def test_without_processes_a_video_over_its_budget_ends_at_its_next_window(jobs, monkeypatch):
    """Decoding a window takes a second, by a clock that only decoding moves."""
    now = [0.0]

    def slow(self):
        for _ in range(4):
            now[0] += 1.0
            yield np.zeros((4, 320, 320, 3), np.uint8)
        raise AssertionError("given up before")

    monkeypatch.setattr("pipeline.decode_limits.time.monotonic", lambda: now[0])
    monkeypatch.setattr("pipeline.decoding.VideoReader.windows", slow)
    tight = limits(video_seconds=2.0, factor=0.25)
    stream = decode_all(jobs[2:3], SAMPLING, LARGE, workers=0, waiting_windows=1, limits=tight)
    events = []
    for event in stream:
        now[0] += 100.0  # the network's time
        events.append(event)
    assert [type(event) for event in events] == [Started, Window, Window, Failed]
    assert events[-1].reason is Reason.TIMEOUT
    assert "budget of 3 s (run.encode.video_timeout_seconds" in events[-1].message


@pytest.mark.parametrize("wrong", [{"video_seconds": 0}, {"factor": -1}, {"videos_per_worker": 0}])
def test_limits_that_no_video_meets_are_refused(wrong):
    with pytest.raises(ValueError, match="limits of decoding must be positive"):
        limits(**wrong)


@pytest.mark.parametrize("seconds", [0.0, math.inf, math.nan])
def test_limits_that_are_none_are_refused(seconds):
    with pytest.raises(ValueError, match="must be positive and finite"):
        limits(video_seconds=seconds)
