"""Decoding: times read back from the pixels, and the ffmpeg command line as the oracle for both."""

from __future__ import annotations

import os
import random
import resource
import subprocess

import numpy as np
import pytest

from pipeline.formats.recipe import PRESETS, Sampling
from pipeline.painter import Painter
from pipeline.pixels import Geometry
from pipeline.video import VideoReader
from tests.video_oracles import assert_like_command_line, decode, every_slot, nearest, numbers
from tests.videos import (
    command_line,
    numbered,
    quadrants,
    set_display_matrix,
    steady,
    write_video,
)

B_FRAMES = {"bf": "2", "g": "50"}


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


def test_a_single_frame_is_a_video(tmp_path):
    path = write_video(tmp_path / "one.mp4", [0.0])
    assert numbers(path) == [0]
    reader = VideoReader(path, sampling=PRESETS["half-hertz"], geometry=Geometry(32))
    (window,) = reader.windows()
    assert window.shape == (16, 32, 32, 3)
    assert (window == window[0]).all()


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

    def count(self, frame, matrix):
        painted.append(frame.pts)
        return paint(self, frame, matrix)

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
