"""Two steps of painting give the bits of one; nothing is kept of what was painted."""

from __future__ import annotations

import gc
from fractions import Fraction

import av
import numpy as np
import pytest

from pipeline.painter import Painter
from pipeline.pixels import Geometry, first_step, is_clipped


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
        return painter(size).paint(source)


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
        np.testing.assert_array_equal(painter(size).paint(source), expected, f"{height}x{width}")


def test_strong_colours_are_painted_in_one_pass(monkeypatch):
    """Without the look for what is cut off, these would differ."""
    source = frame(240, 320, 2, "yuv420p")
    expected = in_one_pass(monkeypatch, 224, source)
    np.testing.assert_array_equal(painter(224).paint(source), expected)
    monkeypatch.setattr("pipeline.painter.is_clipped", lambda *_: False)
    assert (painter(224).paint(source) != expected).any()


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
            brush.paint(frame(48, 64, 4, "yuv420p"))
        left = [held for held in gc.get_objects() if isinstance(held, av.VideoFrame)]
    finally:
        gc.enable()
    assert len(left) <= 1
