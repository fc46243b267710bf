"""The events of one video: its windows as the reader gives them, and how it ended."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pipeline.decoding import Failed, Finished, Job, Started, Window, decode_video
from pipeline.formats.manifest import Reason
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry
from pipeline.video import VideoReader
from tests.videos import rot, steady, write_audio, write_video

SAMPLING = Sampling(frame_rate=8, frames=4, stride_seconds=0.5, tail="repeat")
GEOMETRY = Geometry(frame_size=32)


def events_of(path, declared_seconds: float = 4.0) -> list:
    return list(decode_video(Job(7, str(path), declared_seconds), SAMPLING, GEOMETRY))


def test_a_good_video_gives_its_windows_and_what_the_file_was(plain_video):
    reader = VideoReader(plain_video, sampling=SAMPLING, geometry=GEOMETRY)
    expected = [window.copy() for window in reader.windows()]
    started, *windows, finished = events_of(plain_video)
    assert started == Started(7)
    assert {type(event) for event in windows} == {Window}
    np.testing.assert_array_equal(np.stack([event.pixels for event in windows]), expected)
    status = os.stat(plain_video)
    assert finished == Finished(7, reader.report, status.st_size, status.st_mtime_ns)
    assert not finished.on_gpu
    assert finished.gpu_fault == ""
    assert 0 < finished.busy_seconds <= finished.wall_seconds + 0.1


def test_the_declared_length_counts_where_the_file_tells_none(tmp_path):
    path = write_video(tmp_path / "raw.h264", steady(50), container="h264")
    assert events_of(path, 4.0)[-1].report.missing_fraction == pytest.approx(0.5, abs=0.02)
    assert events_of(path, 0.0)[-1].report.missing_fraction == 0


def test_a_fault_is_an_event_and_no_exception(tmp_path):
    (tmp_path / "page.mp4").write_text("<html>")
    write_audio(tmp_path / "sound.mp4", 1)
    expected = {
        "gone.mp4": (Reason.MISSING, "gone since the manifest: No such file or directory"),
        "page.mp4": (Reason.UNREADABLE, "libav: "),
        "sound.mp4": (Reason.NO_VIDEO_STREAM, ""),
    }
    for name, (reason, message) in expected.items():
        started, failed = events_of(tmp_path / name)
        assert started == Started(7)
        assert isinstance(failed, Failed)
        assert (failed.number, failed.reason) == (7, reason), name
        assert failed.message.startswith(message), name
        assert "\n" not in failed.message


def test_a_video_that_turns_out_bad_has_failed_after_its_windows(tmp_path):
    """Two recordings in one file: the second jumps back in time."""
    one = write_video(tmp_path / "one.ts", steady(50, start=3)).read_bytes()
    (tmp_path / "two.ts").write_bytes(one + one)
    events = events_of(tmp_path / "two.ts")
    assert isinstance(events[0], Started)
    assert events[-1].reason is Reason.DISCONTINUOUS
    assert all(isinstance(event, Window) for event in events[1:-1])


def test_a_rotten_video_still_ends_in_one_event(tmp_path):
    path = write_video(tmp_path / "rot.mp4", steady(50))
    rot(path, bytes_changed=50, after=0.3)
    ends = [event for event in events_of(path, 2.0) if isinstance(event, Finished | Failed)]
    assert len(ends) == 1
