"""Leaving out what is not shown changes no picture, no time and no count."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import av
import numpy as np
import pytest

from pipeline.formats.manifest import VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.grid import Clock
from pipeline.pixels import Geometry
from pipeline.unshown import BrokenPromiseError, Unshown
from pipeline.video import VideoReader
from pipeline.video_stream import StreamReader
from tests.videos import rot, steady, write_video

PYRAMID = {"preset": "veryfast", "bf": "3", "g": "50"}


@dataclasses.dataclass(frozen=True)
class Packet:
    pts: int | None
    is_corrupt: bool = False
    is_discard: bool = False


def account() -> Unshown:
    """Thirty ticks a second, ten slots: slot n shows frames 3n - 1, 3n and, at last, 3n + 1."""
    return Unshown(Clock(Fraction(1, 30), start_seconds=Fraction(0), frame_rate=10))


def passed_over(order: list[int]) -> set[int]:
    planned = list(account().plan(Packet(pts) for pts in order))
    assert [packet.pts for packet, _ in planned] == order
    return {packet.pts for packet, unshown in planned if unshown}


@pytest.mark.parametrize("order", [[*range(12)], [0, 4, 2, 1, 3, 8, 6, 5, 7, 11, 10, 9]])
def test_the_last_frame_of_each_slot_is_needed(order):
    assert passed_over(order) == {0, 2, 3, 5, 6, 8, 9}


def test_what_the_container_calls_corrupt_is_decoded():
    packets = [Packet(0, is_corrupt=True), Packet(1), Packet(2, is_discard=True), Packet(4)]
    assert [unshown for _, unshown in account().plan(packets)] == [False] * 4


def test_frames_come_with_those_passed_over_before_them():
    unshown = account()
    list(unshown.plan(Packet(pts) for pts in (0, 1, 4, 2, 3, 7)))
    assert [packet.pts for packet in unshown.before(Packet(1))] == [0]
    assert [packet.pts for packet in unshown.before(Packet(4))] == [2, 3]
    with pytest.raises(BrokenPromiseError):
        unshown.finish()
    assert unshown.before(Packet(7)) == []
    unshown.finish()


@pytest.mark.parametrize("frames", [[4], [0, 7], [1, 0], [1, 1], [2], [None]])
def test_frames_that_do_not_come_as_promised(frames):
    unshown = account()
    list(unshown.plan(Packet(pts) for pts in (0, 1, 4, 7)))
    with pytest.raises(BrokenPromiseError):
        for pts in frames:
            unshown.before(Packet(pts))


@pytest.mark.parametrize("times", [[0, None], [0, 1, 1]])
def test_packets_must_have_times_of_their_own(times):
    with pytest.raises(BrokenPromiseError):
        list(account().plan(Packet(pts) for pts in times))


# With the decoder


def textured(number: int) -> np.ndarray:
    """Pictures that move, with parts that no other picture has."""
    random = np.random.default_rng(number)
    still = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    picture = np.roll(np.kron(still, np.ones((4, 4, 1), np.uint8)), number * 3, axis=1)
    picture[:16, :16] = random.integers(0, 256, 3)
    return picture


def read(path, *, rate: float = 10, in_full: bool = False):
    """All windows or the fault's text, the report, and how many frames were decoded."""
    decoded = []
    with pytest.MonkeyPatch.context() as patch:
        if in_full:
            patch.setattr(StreamReader, "leave_out_unshown", lambda self: None)
        inner = StreamReader._decoded

        def counting(self, packets):
            for frame in inner(self, packets):
                decoded.append(frame.pts)
                yield frame

        patch.setattr(StreamReader, "_decoded", counting)
        grid = Sampling(frame_rate=rate, frames=4, stride_seconds=4 / rate, tail="repeat")
        reader = VideoReader(path, sampling=grid, geometry=Geometry(32))
        try:
            windows = np.stack(list(reader.windows()))
        except VideoFault as fault:
            return fault.message, None, len(decoded)
    return windows, reader.report, len(decoded)


@pytest.mark.parametrize("rate", [8, 10, 25, 29.97])
@pytest.mark.parametrize("options", [PYRAMID, {**PYRAMID, "b-pyramid": "none"}, {"bf": "0"}])
def test_pictures_and_report_are_those_of_decoding_in_full(tmp_path, rate, options):
    path = write_video(
        tmp_path / "b.mp4", steady(90, 30), rate=30, draw=textured, codec_options=options
    )
    windows, report, count = read(path, rate=rate)
    expected, expected_report, full_count = read(path, rate=rate, in_full=True)
    np.testing.assert_array_equal(windows, expected)
    assert report == expected_report
    assert full_count == 90
    assert count == 90 if rate > 25 or options == {"bf": "0"} else count < 90


def test_a_late_start_a_varying_rate_and_lengths_left_to_the_packets(tmp_path):
    times = [1.3 + second for second in np.cumsum([0.02, 0.03, 0.07, 0.01] * 20)]
    for name in ("late.mkv", "late.ts", "late.mp4"):
        path = write_video(
            tmp_path / name, times, draw=textured, codec_options=PYRAMID, audio_seconds=1
        )
        windows, report, count = read(path)
        expected, expected_report, full_count = read(path, in_full=True)
        np.testing.assert_array_equal(windows, expected)
        assert report == expected_report
        assert count < full_count


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_are_decoded_in_full(tmp_path, seed):
    path = write_video(
        tmp_path / "rot.mp4",
        steady(90, 30),
        rate=30,
        draw=textured,
        codec_options=PYRAMID,
        container_options={"movflags": "faststart"},
    )
    rot(path, bytes_changed=20 if seed % 2 else 400, after=0.5, seed=seed)
    windows, report, _ = read(path)
    expected, expected_report, _ = read(path, in_full=True)
    assert np.array_equal(windows, expected)
    assert report == expected_report


def test_other_codecs_are_decoded_in_full(tmp_path):
    path = write_video(
        tmp_path / "four.mp4", steady(30), codec="mpeg4", codec_options={"bf": "2"}, draw=textured
    )
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.has_b_frames
    assert read(path)[2] == 30
