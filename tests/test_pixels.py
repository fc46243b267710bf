"""The chain of filters for a geometry and a display matrix."""

from __future__ import annotations

import struct

import pytest

from pipeline.pixels import Crop, Geometry, crop_filters, filters, rotation_filters


def matrix(a: int, b: int, c: int, d: int) -> bytes:
    return struct.pack("=9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)


@pytest.mark.parametrize(
    ("display", "chain", "turned"),
    [
        (None, [], False),
        (b"short", [], False),
        (matrix(0, 0, 0, 0), [], False),
        (matrix(1, 0, 0, 1), [], False),
        (matrix(0, 1, -1, 0), ["clock"], True),
        (matrix(0, 1, 1, 0), ["cclock_flip"], True),
        (matrix(0, -1, 1, 0), ["cclock"], True),
        (matrix(0, -1, -1, 0), ["clock_flip"], True),
        (matrix(-1, 0, 0, -1), ["hflip", "vflip"], False),
        (matrix(-1, 0, 0, 1), ["hflip"], False),
        (matrix(1, 0, 0, -1), ["vflip"], False),
        (matrix(1, 1, -1, 1), [], False),
    ],
)
def test_turns_and_flips_are_those_of_the_command_line(display, chain, turned):
    found, swaps = rotation_filters(display)
    assert [arguments or name for name, arguments in found] == chain
    assert swaps is turned


def test_the_square_is_cut_from_the_turned_picture():
    chain = dict(filters(Geometry(32, (40, 60)), 96, 64, matrix(0, 1, -1, 0)))
    assert chain["scale"].startswith("60:40:")
    chain = dict(filters(Geometry(32, 48), 100, 50, matrix(0, 1, -1, 0)))
    assert chain["scale"].startswith("48:96:")
    chain = dict(filters(Geometry(32), 96, 64, matrix(0, 1, -1, 0)))
    assert chain["crop"] == "64:64"


def test_a_crop_leaves_a_picture_or_is_none():
    assert crop_filters(Crop(), 96, 64) == ([], 96, 64)
    found = crop_filters(Crop(left=10, top=4, right=2), 96, 64)
    assert found == ([("crop", "84:60:10:4")], 84, 60)
    assert crop_filters(Crop(top=30, bottom=33), 96, 64)[2] == 1
    for nothing_left in (Crop(left=90, right=6), Crop(top=2**62)):
        assert crop_filters(nothing_left, 96, 64) == ([], 96, 64)


@pytest.mark.parametrize("resize", [31, (32, 31), (16, 64)])
def test_a_square_must_fit_the_resized_picture(resize):
    with pytest.raises(ValueError, match="smaller than frame_size 32"):
        Geometry(32, resize)


def test_frame_size_is_at_least_one():
    with pytest.raises(ValueError, match="at least 1"):
        Geometry(0)
