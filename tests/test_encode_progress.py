"""Progress: seconds of video done, and an honest estimate of the rest."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.decoded import DecodeReport
from pipeline.decoding import Failed, Finished, Job, Started, Window
from pipeline.encode_progress import Progress
from pipeline.formats.manifest import Reason

REPORT = DecodeReport(
    num_frames=8,
    decoded_seconds=1.0,
    end_seconds=1.0,
    packets=8,
    bad_packets=0,
    missing_fraction=0.0,
    synthetic_pts=False,
)


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr("pipeline.encode_progress.time.monotonic", lambda: now[0])
    return now


def test_seconds_count_as_they_are_decoded_and_never_beyond_the_declared_length(clock, caplog):
    caplog.set_level("INFO")
    progress = Progress([Job(0, "a", 10.0), Job(1, "b", 30.0)], stride_seconds=4.0)
    window = Window(0, np.zeros((1, 1, 1, 3), np.uint8))
    assert progress.text() == "0/2 videos, 0/40 s, no end in sight yet"
    clock[0] = 105.0
    for event in (Started(0), window, window, window, window):
        progress.note(event)
    assert caplog.text == ""
    assert progress.text() == "0/2 videos, 10/40 s, 15 s left"
    clock[0] = 110.0
    progress.note(Finished(0, REPORT, 1, 1))
    assert "1/2 videos, 10/40 s, 30 s left" in caplog.text
    progress.note(Failed(1, Reason.NO_FRAMES, ""))
    assert progress.text() == "2/2 videos, 40/40 s, 0 s left"
    assert progress.speed(20.0) == "4 clips, 20 s of video in 10.0 s: 0.40 clips/s, 2.0 x real time"


def test_a_video_that_begins_anew_starts_from_nothing(clock):
    progress = Progress([Job(0, "a", 10.0)], stride_seconds=4.0)
    clock[0] = 101.0
    for event in (Started(0), Window(0, np.zeros((1, 1, 1, 3), np.uint8)), Started(0)):
        progress.note(event)
    assert progress.text() == "0/1 videos, 0/10 s, no end in sight yet"


def test_undeclared_lengths_do_not_break_the_estimate(clock):
    progress = Progress([Job(0, "a", 0.0)], stride_seconds=4.0)
    for event in (Started(0), Window(0, np.zeros((1, 1, 1, 3), np.uint8))):
        progress.note(event)
    assert progress.text() == "0/1 videos, 0/0 s, no end in sight yet"
