"""Decoding processes: same events as without them, and their death is no catastrophe."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from pipeline.decode_limits import Limits
from pipeline.decode_pool import decode_all
from pipeline.decoding import Failed, Finished, Job, Started, Window
from pipeline.formats.manifest import Reason
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry

SAMPLING = Sampling(frame_rate=8, frames=4, stride_seconds=0.5, tail="repeat")
GEOMETRY = Geometry(frame_size=32)
LARGE = Geometry(frame_size=320)
"""Windows of 1.2 MB: more than a pipe holds, so no process runs far ahead of its reader."""


def events_by_video(jobs, workers):
    events = {job.number: [] for job in jobs}
    stream = decode_all(jobs, SAMPLING, GEOMETRY, workers=workers, waiting_windows=2)
    with closing(stream):
        for event in stream:
            events[event.number].append(event)
    return events


def assert_no_process_is_left():
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


def test_processes_give_the_same_events_as_none(jobs):
    alone, together = events_by_video(jobs, 0), events_by_video(jobs, 2)
    for number in alone:
        kinds = [type(event) for event in alone[number]]
        assert [type(event) for event in together[number]] == kinds
        for one, other in zip(alone[number], together[number], strict=True):
            if isinstance(one, Window):
                assert np.array_equal(one.pixels, other.pixels)
            else:
                assert one == other
    assert [type(event) for event in alone[0]] == [Started, Window, Window, Finished]
    assert [type(event) for event in alone[3]] == [Started, Failed]
    assert alone[3][1].reason in (Reason.UNREADABLE, Reason.NO_VIDEO_STREAM)
    assert_no_process_is_left()


def test_a_file_that_went_away_is_missing(tmp_path):
    events = events_by_video([Job(0, str(tmp_path / "gone.mp4"), 1.0)], 0)[0]
    assert (events[-1].reason, len(events)) == (Reason.MISSING, 2)


def kill_the_decoder():
    children = multiprocessing.active_children()
    assert len(children) == 1
    os.kill(children[0].pid, signal.SIGKILL)


def test_a_killed_process_costs_a_video_only_time(jobs, caplog):
    stream = decode_all(jobs[1:3], SAMPLING, LARGE, workers=1, waiting_windows=1)
    windows, starts = [], 0
    with closing(stream):
        for event in stream:
            if isinstance(event, Started) and event.number == 2:
                starts += 1
                windows = []
                if starts == 1:
                    kill_the_decoder()
            elif isinstance(event, Window) and event.number == 2:
                windows.append(event.pixels)
            assert not isinstance(event, Failed)
    expected = [
        event.pixels
        for event in decode_all(jobs[2:3], SAMPLING, LARGE, workers=0, waiting_windows=1)
        if isinstance(event, Window)
    ]
    assert starts == 2
    assert np.array_equal(windows, expected)
    assert "exit code -9" in caplog.text
    assert jobs[2].path in caplog.text


def test_a_video_that_kills_its_process_twice_has_crashed_and_the_next_one_is_decoded(jobs):
    # The long video: it cannot be through before the process is killed.
    stream = decode_all([jobs[2], jobs[0]], SAMPLING, LARGE, workers=1, waiting_windows=1)
    ends = []
    with closing(stream):
        for event in stream:
            if isinstance(event, Started) and event.number == 2:
                kill_the_decoder()
            if isinstance(event, Failed | Finished):
                ends.append(event)
    assert [(event.number, type(event)) for event in ends] == [(2, Failed), (0, Finished)]
    assert ends[0].reason == Reason.CRASHED
    assert "died 2 times (exit code -9)" in ends[0].message


def limits(**changes) -> Limits:
    return Limits(**{"video_seconds": 60.0, "factor": 0.0, "videos_per_worker": 100} | changes)


def test_a_video_that_takes_longer_than_its_budget_ends_as_timeout_and_the_next_one_is_decoded(
    jobs,
):
    """A stopped process is as silent as one that loops inside libav."""
    tight = limits(video_seconds=2.5, factor=0.5)
    stream = decode_all(
        [jobs[2], jobs[0]], SAMPLING, LARGE, workers=1, waiting_windows=1, limits=tight
    )
    ends, began = [], 0.0
    with closing(stream):
        for event in stream:
            if isinstance(event, Started) and event.number == 2:
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGSTOP)
                began = time.monotonic()
            if isinstance(event, Failed | Finished):
                ends.append((event, time.monotonic() - began))
    (slow, seconds), (good, _) = ends
    assert (slow.number, slow.reason) == (2, Reason.TIMEOUT)
    assert "budget of 4 s (run.encode.video_timeout_seconds" in slow.message
    assert 4.0 < seconds < 60
    assert (good.number, type(good)) == (0, Finished)
    assert_no_process_is_left()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_declared_length_beyond_all_reason_is_waited_for_like_any_other(jobs, workers):
    endless = replace(jobs[0], declared_seconds=1e9)
    stream = decode_all([endless], SAMPLING, LARGE, workers=workers, waiting_windows=1)
    assert isinstance(list(stream)[-1], Finished)


def test_a_process_that_never_begins_is_not_the_video_s_fault(jobs, monkeypatch):
    monkeypatch.setattr("pipeline.worker.START_SECONDS", 0.01)
    (failed,) = decode_all(jobs[:1], SAMPLING, LARGE, workers=1, waiting_windows=1)
    assert (failed.reason, "nothing is known of the video" in failed.message) == ("timeout", True)
    assert_no_process_is_left()


def test_time_that_the_network_takes_is_not_the_video_s(jobs):
    """Half a second for each window that is taken, a budget of two seconds for the video."""
    stream = decode_all(
        jobs[2:3], SAMPLING, LARGE, workers=1, waiting_windows=1, limits=limits(video_seconds=2.0)
    )
    kinds = []
    with closing(stream):
        for event in stream:
            time.sleep(0.5)
            kinds.append(type(event))
    assert kinds == [Started, *[Window] * 6, Finished]


def decoders_seen(jobs, videos_per_worker):
    seen = set()
    frugal = limits(videos_per_worker=videos_per_worker)
    stream = decode_all(jobs, SAMPLING, LARGE, workers=1, waiting_windows=1, limits=frugal)
    with closing(stream):
        for event in stream:
            if isinstance(event, Started):
                seen |= {child.pid for child in multiprocessing.active_children()}
    return seen


def test_a_process_is_replaced_after_its_share_of_videos(jobs):
    assert len(decoders_seen(jobs[:3], 1)) == 3
    assert len(decoders_seen(jobs[:3], 3)) == 1


def test_stopping_early_leaves_no_process_and_no_thread(jobs):
    stream = decode_all(jobs, SAMPLING, GEOMETRY, workers=2, waiting_windows=1)
    assert isinstance(next(stream), Started)
    stream.close()
    assert_no_process_is_left()


def test_without_jobs_nothing_starts():
    assert list(decode_all([], SAMPLING, GEOMETRY, workers=2, waiting_windows=1)) == []
    assert multiprocessing.active_children() == []
