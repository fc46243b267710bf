"""Two steps of painting give the bits of one; pictures are cut and turned as their file says."""

from __future__ import annotations

import gc
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline.formats.manifest import Reason
from pipeline.painter import Painter
from pipeline.pixels import Geometry, first_step, is_clipped
from tests.marked_videos import filtered, oriented, remux, turned_on_the_way
from tests.video_oracles import assert_like_command_line, decode, fault_of
from tests.videos import command_line, quadrants, steady, write_video


def frame(height: int, width: int, block: int, pixels: str, *, seed: int = 0) -> av.VideoFrame:
    """Blocks of random colours, every third picture with none but the strongest."""
    random = np.random.default_rng(seed)
    picture = random.integers(0, 256, (-(-height // block), -(-width // block), 3), dtype=np.uint8)
    if seed % 3 == 0:
        picture = (picture > 127).astype(np.uint8) * 255
    picture = np.kron(picture, np.ones((block, block, 1), np.uint8))[:height, :width]
    whole = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    return whole.reformat(format=pixels)


def painter(size: int, resize: int | None = None) -> Painter:
    return Painter(Geometry(size, resize), Fraction(1, 1000))


def in_one_pass(monkeypatch, size: int, source: av.VideoFrame) -> np.ndarray:
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.painter.first_step", lambda *_: None)
        return painter(size).paint(source, None)


@pytest.mark.parametrize("pixels", ["yuv420p", "yuvj420p"])
@pytest.mark.parametrize("size", [2, 16, 56, 112, 224])
def test_two_steps_give_the_bits_of_one(monkeypatch, pixels, size):
    random = np.random.default_rng(size)
    shapes = [(size + extra, size + 9) for extra in range(-1, 4)]
    shapes += [tuple(map(int, random.integers(2, 700, 2))) for _ in range(10)]
    shapes += [(size * 32 + extra, size * 33) for extra in (-2, 0, 2) if size <= 56]
    for seed, (height, width) in enumerate(shapes):
        source = frame(max(2, height), max(2, width), 1 + seed % 5, pixels, seed=seed)
        expected = in_one_pass(monkeypatch, size, source)
        np.testing.assert_array_equal(
            painter(size).paint(source, None), expected, f"{height}x{width}"
        )


def test_strong_colours_are_painted_in_one_pass(monkeypatch):
    """Without the look for what is cut off, these would differ."""
    source = frame(240, 320, 2, "yuv420p")
    expected = in_one_pass(monkeypatch, 224, source)
    np.testing.assert_array_equal(painter(224).paint(source, None), expected)
    monkeypatch.setattr("pipeline.painter.is_clipped", lambda *_: False)
    assert (painter(224).paint(source, None) != expected).any()


@pytest.mark.parametrize(
    ("shape", "pixels", "resize", "expected"),
    [
        ((360, 640), "yuv420p", None, "yuv422p"),
        ((360, 640), "yuvj420p", None, "yuvj422p"),
        ((360, 640), "yuv420p10le", None, None),
        ((360, 640), "yuv420p", 256, None),
        ((224, 400), "yuv420p", None, None),
        ((225, 400), "yuv420p", None, None),
        ((3, 400), "yuv420p", None, None),
        ((32 * 224 + 1, 32 * 224 + 1), "yuv420p", None, None),
    ],
)
def test_where_there_are_two_steps(shape, pixels, resize, expected):
    assert first_step(Geometry(224, resize), shape[1], shape[0], pixels) == expected


def test_what_planes_cut_off():
    grey = np.full((2, 4), 128, np.uint8)
    picture = np.full((2, 4, 3), 100, np.uint8)
    assert not is_clipped([grey, grey[:, :2], grey[:, :2]], picture)
    for value in (0, 255):
        edge = grey.copy()
        edge[1, 1] = value
        assert is_clipped([grey, grey[:, :2], edge[:, :2]], picture)
        assert is_clipped([edge, grey[:, :2], grey[:, :2]], picture)
        ended = picture.copy()
        ended[1, 1] = value
        assert not is_clipped([edge, grey[:, :2], grey[:, :2]], ended)


@pytest.mark.filterwarnings("ignore:.*reduce_op")  # of torch, which is looked at too
def test_a_painted_frame_is_freed_without_a_garbage_collection():
    brush = painter(32)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            brush.paint(frame(48, 64, 4, "yuv420p"), None)
        left = [held for held in gc.get_objects() if isinstance(held, av.VideoFrame)]
    finally:
        gc.enable()
    assert len(left) <= 1


# What a file says of its pictures


def as_the_command_line(ffmpeg: str, path: Path, size: int = 56) -> np.ndarray:
    """Its pictures, uint8 [num_frames, size, size, 3].

    Where a turn changes on the way, the command line forgets which pixels are wanted at the end.
    """
    square = "fps=10,crop='min(iw,ih)':'min(iw,ih)'"
    chain = f"{square},scale={size}:{size}:flags=bicubic,format=rgb24"
    return command_line(ffmpeg, path, chain, size)


def corners(picture: np.ndarray) -> str:
    """The quarters of `quadrants`: R, G, B, W (above, then below) when it stands upright."""
    quarter = len(picture) // 4
    places = [(y, x) for y in (quarter, -quarter) for x in (quarter, -quarter)]
    colours = [picture[y, x].astype(int) for y, x in places]
    return "".join("W" if min(c) > 100 else "RGB"[int(np.argmax(c))] for c in colours)


def quartered(path: Path, **options) -> Path:
    return write_video(path, steady(5, 10), rate=10, draw=lambda _: quadrants(), **options)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (["rotate=90", "", ""], ["GWRB", "GWRB", "GWRB"]),
        (["", "rotate=90", ""], ["RGBW", "GWRB", "GWRB"]),
        (["rotate=90", "flip=horizontal", "rotate=180"], ["GWRB", "GRWB", "WBGR"]),
        (["flip=vertical", ""], ["BWRG", "BWRG"]),
    ],
)
def test_an_orientation_holds_until_the_next(tmp_path, ffmpeg, turns, expected):
    source = quartered(tmp_path / "upright.mp4")
    path = turned_on_the_way(source, tmp_path / "turned.mp4", turns)
    found, _ = decode(path, 10, 56)
    assert [corners(picture) for picture in found] == [one for one in expected for _ in range(5)]
    assert np.abs(found.astype(int) - as_the_command_line(ffmpeg, path)).max() <= 2


def test_an_orientation_of_a_frame_that_no_slot_shows_holds_too(tmp_path):
    source = write_video(tmp_path / "fast.mp4", steady(10), draw=lambda _: quadrants())
    path = turned_on_the_way(source, tmp_path / "turned.mp4", ["", "rotate=90"])
    # The first of the turned frames lies at 0.40 s, slot 2 shows the one at 0.56 s.
    found, _ = decode(path, 4, 56)
    assert [corners(picture) for picture in found] == ["RGBW", "RGBW", "GWRB"]


@pytest.mark.parametrize(
    ("orientation", "expected"),
    enumerate(["RGBW", "GRWB", "WBGR", "BWRG", "RBGW", "BRWG", "WGBR", "GWRB"], start=1),
)
def test_pictures_are_turned_and_mirrored_as_exif_says(tmp_path, ffmpeg, orientation, expected):
    source = quartered(tmp_path / "upright.mkv", codec="mjpeg", pixels="yuvj420p")
    path = oriented(source, tmp_path / "exif.mkv", orientation)
    found, _ = decode(path, 10, 56)
    assert {corners(picture) for picture in found} == {expected}
    assert np.abs(found.astype(int) - as_the_command_line(ffmpeg, path)).max() <= 2


@pytest.mark.parametrize("sides", ["crop_left=6:crop_top=2", "crop_left=2:crop_right=30"])
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv444p"])
def test_pictures_are_cut_at_the_left_as_their_header_says(tmp_path, ffmpeg, sides, pixels):
    source = write_video(tmp_path / "whole.ts", steady(10, 10), rate=10, pixels=pixels)
    path = remux(source, tmp_path / "cut.ts", filtered(source, f"h264_metadata={sides}"))
    assert_like_command_line(ffmpeg, path)


@pytest.mark.parametrize(("matrix", "name"), [("YCgCo", "YCgCo"), ("ICtCp", "ICtCp")])
def test_a_colour_matrix_that_is_not_converted_is_named(tmp_path, matrix, name):
    options = {"codec_options": {"x264-params": f"colormatrix={matrix}"}}
    fault = fault_of(quartered(tmp_path / "colours.mkv", **options))
    assert fault.reason is Reason.UNREADABLE
    assert f"yuv420p, colour matrix {name}" in fault.message
    assert "bt709" in fault.message
