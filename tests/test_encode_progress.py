"""Progress: seconds of video done, and an honest estimate of the rest."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.decode_limits import WaitingWindows
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


def finished(busy: float, wall: float) -> Finished:
    return Finished(0, REPORT, 1, 1, busy, wall)


@pytest.mark.parametrize(
    ("spent", "end", "bottleneck", "advice"),
    [
        ({"decode": 6.0, "model": 3.0}, finished(5.5, 6.0), "decode", "more run.encode.workers"),
        ({"decode": 6.0, "model": 3.0}, finished(1.0, 6.0), "reading", "reading the videos is"),
        ({"decode": 1.0, "model": 8.0}, finished(1.0, 6.0), "model", "the network is the"),
        ({"disk": 5.0, "model": 4.0}, finished(5.5, 6.0), "disk", "writing features is the"),
    ],
)
def test_the_bottleneck_is_what_time_is_spent_on(clock, spent, end, bottleneck, advice):
    progress = Progress([Job(0, "a", 10.0)], stride_seconds=4.0)
    for what, seconds in spent.items():
        with progress.spending(what):
            clock[0] += seconds
    progress.note(end)
    assert progress.text().endswith(f"0 s left, waiting for {bottleneck}")
    assert advice in progress.verdict()
    total = sum(spent.values())
    assert f"model {spent['model'] / total:.0%}" in progress.verdict()


def test_waiting_for_events_is_the_decoders_time(clock):
    progress = Progress([Job(0, "a", 10.0)], stride_seconds=4.0)

    def events():
        clock[0] += 3.0
        yield Started(0)
        clock[0] += 4.0
        yield Failed(0, Reason.NO_FRAMES, "")

    for _ in progress.follow(events()):
        clock[0] += 100.0
    assert progress.spent == {"decode": 7.0, "model": 0.0, "disk": 0.0}
    assert progress.num_done == 1


def test_the_line_tells_the_queue_and_the_machine():
    waiting = WaitingWindows(16)
    waiting.now = 9
    progress = Progress(
        [Job(0, "a", 10.0)], stride_seconds=4.0, waiting=waiting, machine=lambda: "GPU 83 % busy"
    )
    assert progress.text().endswith(", 9/16 windows queued, GPU 83 % busy")
    assert progress.verdict().endswith("GPU 83 % busy")
