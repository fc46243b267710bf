"""Decoding: times read back from the pixels, and the ffmpeg command line as the oracle for both."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
import time
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline import video_stream
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import PRESETS, Sampling
from pipeline.painter import Painter
from pipeline.video import DecodeReport, Geometry, VideoReader
from tests.videos import (
    command_line,
    cut,
    number_of,
    numbered,
    quadrants,
    rot,
    set_display_matrix,
    steady,
    write_audio,
    write_video,
)

B_FRAMES = {"bf": "2", "g": "50"}


def every_slot(rate: float) -> Sampling:
    """A window of one frame for each slot of the grid."""
    return Sampling(frame_rate=rate, frames=1, stride_seconds=1 / rate, tail="repeat")


def decode(
    path: Path, rate: float = 10, size: int = 32, **options
) -> tuple[np.ndarray, DecodeReport]:
    """The grid of a video, uint8 [num_frames, size, size, 3], and the report."""
    geometry = options.pop("geometry", Geometry(size))
    reader = VideoReader(path, sampling=every_slot(rate), geometry=geometry, **options)
    windows = list(reader.windows())
    assert len(windows) == reader.report.num_frames
    return np.concatenate(windows), reader.report


def numbers(path: Path, rate: float = 10) -> list[int]:
    return [number_of(picture) for picture in decode(path, rate)[0]]


def nearest(seconds: list[float], rate: float, end: float) -> list[int]:
    """The last frame whose time is nearest to slot n or before it, for each slot n of the grid."""
    slots = [int(second * rate + 0.5) for second in seconds]
    return [
        max(k for k, slot in enumerate(slots) if slot <= max(n, slots[0]))
        for n in range(int(end * rate + 0.5))
    ]


def fault_of(path: Path | str, **options) -> VideoFault:
    with pytest.raises(VideoFault) as caught:
        decode(path, **options)
    return caught.value


def assert_like_command_line(ffmpeg: str, path: Path, rate: float = 10, size: int = 56) -> None:
    chain = f"fps={rate},crop='min(iw,ih)':'min(iw,ih)',scale={size}:{size}"
    expected = command_line(ffmpeg, path, chain, size)
    found, _ = decode(path, rate, size)
    assert len(found) == len(expected)
    assert np.abs(found.astype(int) - expected).max() <= 2


# Times


@pytest.mark.parametrize("rate", [8, 10, 16, 25, 29.97, 30])
def test_slots_show_the_frame_of_their_time(plain_video, rate):
    assert numbers(plain_video, rate) == nearest(steady(100), rate, 4)


@pytest.mark.parametrize("name", ["b.mp4", "b.mkv", "b.ts"])
def test_frames_are_placed_in_the_order_of_showing(tmp_path, name):
    path = write_video(tmp_path / name, steady(100), codec_options=B_FRAMES)
    assert numbers(path) == nearest(steady(100), 10, 4)


def test_variable_frame_rates_go_by_time(tmp_path):
    rng = random.Random(7)
    seconds = [0.0]
    while seconds[-1] < 6:
        seconds.append(round(seconds[-1] + rng.choice([0.02, 0.033, 0.2, 0.9]), 3))
    path = write_video(tmp_path / "vfr.mkv", seconds)
    found = numbers(path, 8)
    assert found == nearest(seconds, 8, len(found) / 8)
    assert abs(len(found) - seconds[-1] * 8) <= 8


def test_a_late_start_shows_the_first_grid_frame_until_then(tmp_path):
    late = write_video(tmp_path / "late.mkv", steady(100, start=1.5), audio_seconds=5)
    prompt = write_video(tmp_path / "prompt.mkv", steady(100))
    found, report = decode(late, 16)
    unshifted, _ = decode(prompt, 16)
    assert report.num_frames == 88
    np.testing.assert_array_equal(found[24:], unshifted)
    np.testing.assert_array_equal(found[:24], np.repeat(found[24:25], 24, axis=0))
    assert report.missing_fraction < 0.05
    assert report.decoded_seconds == pytest.approx(4, abs=0.05)
    assert report.end_seconds == pytest.approx(5.5, abs=0.05)


def test_a_transport_stream_counts_from_its_own_start(tmp_path, plain_video):
    path = write_video(tmp_path / "late.ts", steady(100, start=11.4))
    assert av.open(str(path)).start_time > 11_000_000
    assert numbers(path) == numbers(plain_video)


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_avi_without_pts(tmp_path, codec):
    path = write_video(tmp_path / "plain.avi", steady(100), codec=codec, ticks=25)
    found = numbers(path)
    assert abs(len(found) - 40) <= 1
    assert all(abs(a - b) <= 1 for a, b in zip(found, nearest(steady(100), 10, 4), strict=False))


def test_a_file_without_timestamps_goes_by_its_declared_rate(tmp_path, plain_video):
    path = write_video(tmp_path / "raw.h264", steady(100), container="h264")
    found, report = decode(path)
    assert report.synthetic_pts
    assert not decode(plain_video)[1].synthetic_pts
    assert abs(report.num_frames - 40) <= 1
    assert [number_of(picture) for picture in found][:30] == nearest(steady(100), 10, 4)[:30]


def test_a_single_frame_is_a_video(tmp_path):
    path = write_video(tmp_path / "one.mp4", [0.0])
    assert numbers(path) == [0]
    reader = VideoReader(path, sampling=PRESETS["half-hertz"], geometry=Geometry(32))
    (window,) = reader.windows()
    assert window.shape == (16, 32, 32, 3)
    assert (window == window[0]).all()


def test_a_second_recording_behind_the_first_is_a_fault(tmp_path):
    one = write_video(tmp_path / "one.ts", steady(50, start=3)).read_bytes()
    (tmp_path / "two.ts").write_bytes(one + one)
    fault = fault_of(tmp_path / "two.ts")
    assert fault.reason is Reason.DISCONTINUOUS
    assert "jump back" in fault.message


# Windows


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_windows_are_slices_of_the_grid(plain_video, preset):
    grid = PRESETS[preset]
    pictures, report = decode(plain_video, grid.frame_rate)
    reader = VideoReader(plain_video, sampling=grid, geometry=Geometry(32))
    windows = list(reader.windows())
    assert reader.report == report
    assert len(windows) == grid.num_vectors(report.num_frames)
    for index, window in enumerate(windows):
        assert (window.dtype, window.shape) == (np.uint8, (grid.frames, 32, 32, 3))
        own = pictures[index * grid.stride_frames :][: grid.frames]
        np.testing.assert_array_equal(window[: len(own)], own)
        fill = 0 if grid.tail == "zero" else own[-1]
        assert (window[len(own) :] == fill).all()
    assert grid.valid_frames(report.num_frames)[-1] == len(own)


def test_a_frame_is_converted_at_most_once_and_only_when_a_slot_shows_it(plain_video, monkeypatch):
    painted = []
    paint = Painter.paint

    def count(self, frame):
        painted.append(frame.pts)
        return paint(self, frame)

    monkeypatch.setattr(Painter, "paint", count)
    overlapping = Sampling(frame_rate=10, frames=16, stride_seconds=0.2, tail="repeat")
    list(VideoReader(plain_video, sampling=overlapping, geometry=Geometry(32)).windows())
    assert len(painted) == len(set(painted)) == 40
    painted.clear()
    gaps = Sampling(frame_rate=10, frames=2, stride_seconds=1, tail="repeat")
    list(VideoReader(plain_video, sampling=gaps, geometry=Geometry(32)).windows())
    assert len(painted) == 8


def test_a_long_video_needs_no_more_memory_than_a_short_one(tmp_path):
    flat = np.zeros((16, 16, 3), np.uint8)
    path = write_video(tmp_path / "long.mp4", steady(6000), draw=lambda _: flat)
    grid = Sampling(frame_rate=25, frames=16, stride_seconds=0.64, tail="repeat")
    reader = VideoReader(path, sampling=grid, geometry=Geometry(112))
    next(reader.windows())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(1 for _ in VideoReader(path, sampling=grid, geometry=Geometry(112)).windows())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert count == 375
    assert grown < 40_000, "the windows together are 226 MB"


def test_closing_early_closes_the_file(plain_video):
    before = len(os.listdir("/proc/self/fd"))
    windows = VideoReader(plain_video, sampling=every_slot(10), geometry=Geometry(8)).windows()
    next(windows)
    windows.close()
    assert len(os.listdir("/proc/self/fd")) == before


# Pixels


@pytest.mark.parametrize(
    ("pixels", "codec", "shape"),
    [
        ("yuv420p", "libx264", (96, 64)),
        ("yuvj420p", "libx264", (64, 96)),
        ("yuv422p", "libx264", (98, 66)),
        ("yuv444p", "libx264", (161, 121)),
        ("yuv420p10le", "libx264", (96, 64)),
        ("yuv420p", "libvpx-vp9", (161, 121)),
        ("yuva420p", "libvpx-vp9", (96, 64)),
        ("yuv420p", "mpeg4", (16, 900)),
        ("yuv444p", "libx264", (10, 12)),
    ],
)
def test_pixels_are_those_of_the_command_line(tmp_path, ffmpeg, pixels, codec, shape):
    rng = np.random.default_rng(0)
    width, height = shape
    rough = rng.integers(0, 256, (-(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    picture = np.kron(rough, np.ones((4, 4, 1), np.uint8))[:height, :width]
    path = tmp_path / "picture.mkv"
    write_video(
        path,
        steady(5, 10),
        rate=10,
        codec=codec,
        pixels=pixels,
        draw=lambda number: np.roll(picture, number, axis=1),
    )
    assert_like_command_line(ffmpeg, path)


@pytest.mark.parametrize(
    "matrix",
    [(0, 1, -1, 0), (0, -1, 1, 0), (-1, 0, 0, -1), (1, 0, 0, -1), (-1, 0, 0, 1), (0, 1, 1, 0)],
)
def test_turned_videos_are_those_of_the_command_line(tmp_path, ffmpeg, matrix):
    path = write_video(tmp_path / "turned.mp4", steady(5), draw=lambda _: quadrants())
    set_display_matrix(path, matrix)
    assert_like_command_line(ffmpeg, path)


def test_a_portrait_phone_video_stands_upright(tmp_path):
    path = write_video(tmp_path / "phone.mp4", steady(3), draw=lambda _: quadrants())
    set_display_matrix(path, (0, 1, -1, 0))
    picture = decode(path)[0][0].astype(int)
    corners = [
        picture[y, x].argmax() if picture[y, x].min() < 100 else 3
        for y, x in ((6, 6), (6, 26), (26, 6), (26, 26))
    ]
    # Red, green / blue, white, turned clockwise by a quarter: blue, red / white, green.
    assert corners == [2, 0, 3, 1]


@pytest.mark.parametrize(
    ("resize", "chain"),
    [
        (48, "scale=72:48:flags=bicubic,format=rgb24,crop=32:32"),
        ((40, 90), "scale=90:40:flags=bicubic,format=rgb24,crop=32:32"),
    ],
)
def test_other_geometries(plain_video, ffmpeg, resize, chain):
    found, _ = decode(plain_video, geometry=Geometry(32, resize))
    expected = command_line(ffmpeg, plain_video, f"fps=10,{chain}", 32)
    assert np.abs(found.astype(int) - expected).max() <= 2


@pytest.mark.parametrize(("width", "height"), [(2, 2), (2, 40), (40, 2)])
def test_tiny_pictures_grow(tmp_path, width, height):
    grey = np.full((height, width, 3), 128, np.uint8)
    path = write_video(tmp_path / "tiny.mp4", steady(3), draw=lambda _: grey)
    pictures, _ = decode(path, size=64)
    assert np.abs(pictures.astype(int) - 128).max() < 6


def test_sizes_that_change_on_the_way(tmp_path):
    small = write_video(tmp_path / "small.ts", steady(25)).read_bytes()
    large = write_video(
        tmp_path / "large.ts",
        steady(25, start=1),
        draw=lambda number: np.kron(numbered(number), np.ones((2, 2, 1), np.uint8)),
    ).read_bytes()
    (tmp_path / "both.ts").write_bytes(small + large)
    found = numbers(tmp_path / "both.ts")
    assert len(found) == 20
    assert found[:9] == nearest(steady(25), 10, 1)[:9]
    assert found[11:] == nearest(steady(25), 10, 1)[1:]


def test_reserved_colours_are_no_fault(tmp_path, ffmpeg):
    path = write_video(tmp_path / "plain.mp4", steady(10))
    reserved = tmp_path / "reserved.mp4"
    values = "matrix_coefficients=3:transfer_characteristics=3:colour_primaries=3"
    copy = ["-c", "copy", "-bsf:v", f"h264_metadata={values}"]
    subprocess.run([ffmpeg, "-v", "error", "-i", path, *copy, reserved], check=True)
    assert len(decode(reserved)[0]) == 4


# Damage


def test_truncation_is_measured(tmp_path):
    fast = {"movflags": "faststart"}
    for name, options in (("cut.mp4", fast), ("cut.mkv", {}), ("cut_sound.mkv", {})):
        path = write_video(
            tmp_path / name,
            steady(200),
            container_options=options,
            audio_seconds=8 if "sound" in name else 0,
        )
        assert decode(path)[1].missing_fraction < 0.02
        cut(path, 0.6)
        report = decode(path)[1]
        with av.open(str(path)) as container:
            left = sum(packet.size > 0 for packet in container.demux(video=0))
        assert 20 < left < 180, name
        assert report.decoded_seconds == pytest.approx(left / 25, abs=0.1), name
        assert report.missing_fraction == pytest.approx(1 - left / 200, abs=0.02), name
        assert report.num_frames == pytest.approx(left / 2.5, abs=1), name


def test_a_longer_sound_misses_nothing(tmp_path):
    for name in ("long.mp4", "long.mkv", "long.ts"):
        path = write_video(tmp_path / name, steady(50), audio_seconds=6)
        report = decode(path)[1]
        assert report.num_frames == pytest.approx(20, abs=1)
        assert report.missing_fraction == pytest.approx(0, abs=0.05)


def test_the_manifest_tells_the_length_of_a_file_that_does_not(tmp_path):
    path = write_video(tmp_path / "raw.h264", steady(50), container="h264")
    assert decode(path)[1].missing_fraction == 0
    assert decode(path, declared_seconds=4)[1].missing_fraction == pytest.approx(0.5, abs=0.02)


def test_bad_packets_lose_only_themselves(tmp_path):
    path = write_video(tmp_path / "rot.mp4", steady(100), codec_options={"g": "1"})
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0)]
    data = bytearray(path.read_bytes())
    for start, size in (places[20], places[21], places[60]):
        data[start : start + size] = b"\xff" * size
    path.write_bytes(data)
    found, report = decode(path, 25)
    assert (report.packets, report.bad_packets, report.num_frames) == (100, 3, 100)
    lost = {20: 19, 21: 19, 60: 59}
    assert [number_of(picture) for picture in found] == [lost.get(n, n) for n in range(100)]


def test_rotten_files_end_in_time(tmp_path):
    good = write_video(tmp_path / "good.mp4", steady(50), audio_seconds=2)
    started = time.monotonic()
    for seed in range(12):
        path = Path(shutil.copy(good, tmp_path / f"rot{seed}.mp4"))
        rot(path, bytes_changed=200, after=0, seed=seed)
        with contextlib.suppress(VideoFault):
            assert decode(path)[1].num_frames > 0
    assert time.monotonic() - started < 120


def test_faults_have_names(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "page.mp4").write_text("<html><body>429</body></html>")
    os.mkfifo(tmp_path / "pipe.mp4")
    write_audio(tmp_path / "sound.mp4", 1)
    write_audio(tmp_path / "cover.mp4", 1, cover=True)
    cut(write_video(tmp_path / "cut.mp4", steady(200)), 0.6)
    fast = {"movflags": "faststart"}
    head = write_video(tmp_path / "head.mp4", steady(50), container_options=fast)
    data = head.read_bytes()
    head.write_bytes(data[: data.index(b"mdat") + 8])
    expected = {
        "absent.mp4": Reason.MISSING,
        "pipe.mp4": Reason.NOT_A_FILE,
        "empty.mp4": Reason.EMPTY,
        "page.mp4": Reason.UNREADABLE,
        "cut.mp4": Reason.UNREADABLE,
        "sound.mp4": Reason.NO_VIDEO_STREAM,
        "cover.mp4": Reason.NO_VIDEO_STREAM,
        "head.mp4": Reason.NO_FRAMES,
    }
    assert {name: fault_of(tmp_path / name).reason for name in expected} == expected


def test_a_header_that_claims_too_many_pixels_gets_no_memory(plain_video, monkeypatch):
    monkeypatch.setattr(video_stream, "MAX_PIXELS", 96 * 64 - 1)
    assert fault_of(plain_video).reason is Reason.NO_FRAMES


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4", "list.ffconcat"])
def test_playlists_reach_no_other_file(plain_video, tmp_path, name):
    shutil.copy(plain_video, tmp_path / "part.mp4")
    hls = f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{tmp_path}/part.mp4\n#EXT-X-ENDLIST\n"
    for text in (hls, "ffconcat version 1.0\nfile part.mp4\n"):
        (tmp_path / name).write_text(text)
        assert fault_of(tmp_path / name).reason is Reason.UNREADABLE


@pytest.mark.parametrize("name", ["-x.mp4", "http:x.mp4", "a b'é%d?.mp4", "no end"])
def test_odd_names_are_names(plain_video, tmp_path, monkeypatch, name):
    shutil.copy(plain_video, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert decode(name)[1].num_frames == 40


def test_the_log_level_of_libav_is_left_alone(plain_video):
    before = av.logging.get_level()
    decode(plain_video)
    assert av.logging.get_level() == before
