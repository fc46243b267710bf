"""Pictures at given moments are the frames on the screen then: the frames are numbered."""

from __future__ import annotations

import io
import os
import signal
from contextlib import closing

import av
import numpy as np
import pytest

from pipeline import stills, worker
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.stills import StillDrawer, still
from tests.video_oracles import numbers
from tests.videos import number_of, steady, write_video

LONG = {"g": "100", "bf": "2", "sc_threshold": "0"}
"""Key frames 4 s apart, and frames that are stored in another order than they are shown."""
MPEG2 = {"codec": "mpeg2video", "ticks": 25, "codec_options": {"g": "100", "bf": "2"}}
VP9 = {"codec": "libvpx-vp9", "codec_options": {"g": "100", "deadline": "realtime", "crf": "20"}}
FILES = {
    "a.mp4": {"codec_options": LONG},
    "a.mkv": {"codec_options": LONG},
    "a.webm": VP9,
    "a.ts": {"codec_options": LONG},
    "mpeg2.ts": MPEG2,
    "a.avi": {"codec": "mpeg4", "ticks": 25, "codec_options": {"g": "100", "bf": "1"}},
    "h264.avi": {"ticks": 25, "codec_options": LONG},
    "a.mpg": {**MPEG2, "container": "vob"},
    "short.mpg": {**MPEG2, "container": "vob", "codec_options": {"g": "12"}},
    "raw.h264": {"codec_options": LONG},
    **{f"late.{kind}": {"audio_seconds": 10} for kind in ("mp4", "mkv", "ts")},
}
"""How to write each: 10 s at 25 frames a second, of which the late ones show nothing for 6 s."""


def decoded(jpeg: bytes) -> np.ndarray:
    """The pixels of a JPEG."""
    with av.open(io.BytesIO(jpeg), format="mjpeg") as file:
        return next(file.decode(video=0)).to_ndarray(format="rgb24")


@pytest.mark.parametrize(
    ("seconds", "number"), [(0.0, 0), (0.05, 1), (1.23, 30), (2.6, 65), (3.9, 97), (99.0, 99)]
)
def test_a_still_is_the_frame_on_the_screen(plain_video, seconds, number):
    picture = decoded(still(plain_video, seconds, 64))
    assert picture.shape == (64, 64, 3)
    assert number_of(picture) == number


def test_times_count_from_where_the_file_starts(tmp_path):
    path = write_video(tmp_path / "late.mkv", steady(50, start=5.0))
    assert number_of(decoded(still(path, 1.0, 64))) == 25


@pytest.mark.parametrize("name", FILES)
def test_a_still_shows_what_the_features_see_then_wherever_seeking_lands(name, tmp_path):
    times = steady(100, start=6) if name.startswith("late") else steady(250)
    try:
        path = write_video(tmp_path / name, times, **FILES[name])
    except (av.FFmpegError, ValueError) as error:
        pytest.skip(f"this build of PyAV does not write {name}: {error}")
    grid = numbers(path, 25)
    for seconds in (0.0, 0.5, 2.5, 3.98, 5.0, 7.5, 9.5, 9.9):
        found = number_of(decoded(still(path, seconds, 144)))
        assert abs(found - grid[int(seconds * 25 + 1e-6)]) <= 1, seconds


def test_the_same_still_has_the_same_bytes(plain_video):
    assert still(plain_video, 1.0, 48) == still(plain_video, 1.0, 48)


def test_what_is_no_video_is_a_named_fault(tmp_path, plain_video):
    (tmp_path / "page.mp4").write_text("<!DOCTYPE html>")
    with pytest.raises(VideoFault):
        still(tmp_path / "page.mp4", 1.0, 48)
    (tmp_path / "cut.mp4").write_bytes(plain_video.read_bytes()[:500])
    with pytest.raises(VideoFault):
        still(tmp_path / "cut.mp4", 1.0, 48)


def test_a_process_of_its_own_draws_the_same(plain_video, tmp_path):
    (tmp_path / "page.mp4").write_text("<!DOCTYPE html>")
    with closing(StillDrawer()) as drawer:
        assert drawer.still(plain_video, 1.0, 48) == still(plain_video, 1.0, 48)
        with pytest.raises(VideoFault) as own:
            drawer.still(tmp_path / "page.mp4", 1.0, 48)
        with pytest.raises(VideoFault) as here:
            still(tmp_path / "page.mp4", 1.0, 48)
        assert (own.value.reason, own.value.message) == (here.value.reason, here.value.message)
        assert drawer.still(plain_video, 2.0, 48) == still(plain_video, 2.0, 48)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, Reason.CRASHED), (signal.SIGSTOP, Reason.TIMEOUT)]
)
def test_a_process_that_dies_or_hangs_costs_one_picture(plain_video, number, reason):
    """A stopped process is as silent as one that loops inside libav."""
    with closing(StillDrawer(seconds=2.0)) as drawer:
        drawer.still(plain_video, 1.0, 48)
        first = drawer._worker.process
        os.kill(first.pid, number)
        with pytest.raises(VideoFault) as caught:
            drawer.still(plain_video, 1.0, 48)
        assert caught.value.reason is reason
        assert not first.is_alive()
        drawer.seconds = stills.PICTURE_SECONDS
        assert drawer.still(plain_video, 1.0, 48) == still(plain_video, 1.0, 48)


def end_at_once(*_) -> None:
    """A process that dies before it says anything, as of a library that does not load."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [("START_SECONDS", 0.0, Reason.TIMEOUT), ("_serve", end_at_once, Reason.CRASHED)],
)
def test_a_process_that_never_begins_is_a_fault_and_the_next_may_begin(
    plain_video, monkeypatch, attribute, value, reason
):
    with closing(StillDrawer()) as drawer:
        with monkeypatch.context() as patch:
            patch.setattr(worker, attribute, value)
            with pytest.raises(VideoFault) as caught:
                drawer.still(plain_video, 1.0, 48)
        assert caught.value.reason is reason
        assert drawer.still(plain_video, 1.0, 48) == still(plain_video, 1.0, 48)
