"""Which part of a picture an encoder sees, and the libavfilter chain that cuts it out."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

SMALLEST = 4
"""Pixels on the short side, below which colours cannot be cut by whole samples."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a picture of any size becomes a square of `frame_size` pixels."""

    frame_size: int
    resize: tuple[int, int] | int | None = None
    """None: cut the centre square, then scale it (S3D). A number: scale the short side to it, then
    cut the centre. (height, width): scale to that, then cut the centre."""

    def __post_init__(self) -> None:
        smallest = min(self.resize) if isinstance(self.resize, tuple) else self.resize
        if self.frame_size < 1:
            raise ValueError(f"frame_size is {self.frame_size}, must be at least 1")
        if smallest is not None and smallest < self.frame_size:
            raise ValueError(f"resize {self.resize} is smaller than frame_size {self.frame_size}")


class Crop(NamedTuple):
    """Pixels that a container cuts off each side of a decoded picture, before it is turned."""

    left: int = 0
    top: int = 0
    right: int = 0
    bottom: int = 0


Filter = tuple[str, str]
"""A name and its arguments."""

UNCONVERTED = {
    8: "YCgCo",
    10: "BT.2020 with constant luminance",
    11: "SMPTE 2085",
    12: "derived from the primaries",
    13: "derived from the primaries, with constant luminance",
    14: "ICtCp",
}
"""Colour matrices (ITU-T H.273, 8.3) that libav knows by number and does not turn into RGB."""
HALF_AS_WIDE = {"yuv420p": "yuv422p", "yuvj420p": "yuvj422p"}
"""By the pixel format of a source: where swscale scales it to on its way to RGB, colours half as
wide as the picture, when that way is taken in two steps."""
TO_RGB: list[Filter] = [("scale", "flags=bicubic+accurate_rnd"), ("format", "rgb24")]
"""The second step."""


def filters(
    geometry: Geometry,
    width: int,
    height: int,
    display_matrix: bytes | None,
    *,
    pixels: str = "rgb24",
) -> list[Filter]:
    """The filters that turn a width × height picture into RGB as `geometry` says.

    The chain is what the ffmpeg command line makes of `-vf crop=...,scale=...` with rgb24 output:
    the picture is turned first, cropping only moves pointers, and a single pass of swscale scales
    and converts the colours. Other `pixels` than rgb24 are those of a first step.
    """
    turns, turned = rotation_filters(display_matrix)
    if turned:
        width, height = height, width
    size, short = geometry.frame_size, min(width, height)
    chain = [("format", "rgb24")] if short < SMALLEST else []
    chain += turns
    if geometry.resize is None:
        chain += [("crop", f"{short}:{short}"), _scale(size, size, pixels)]
        return [*chain, ("format", pixels)]
    if isinstance(geometry.resize, tuple):
        scaled_height, scaled_width = geometry.resize
    else:
        scaled_width = max(size, round(width * geometry.resize / short))
        scaled_height = max(size, round(height * geometry.resize / short))
    chain += [_scale(scaled_width, scaled_height, pixels), ("format", pixels)]
    return [*chain, ("crop", f"{size}:{size}")]


def crop_filters(crop: Crop, width: int, height: int) -> tuple[list[Filter], int, int]:
    """The filters that cut a width × height picture, and the size it has then.

    A crop that would leave nothing is none: the pictures are not those that it was meant for.
    """
    left, top, right, bottom = crop
    cut_width, cut_height = width - left - right, height - top - bottom
    if not any(crop) or min(cut_width, cut_height) < 1:
        return [], width, height
    return [("crop", f"{cut_width}:{cut_height}:{left}:{top}")], cut_width, cut_height


def first_step(geometry: Geometry, width: int, height: int, pixels: str) -> str | None:
    """The pixel format between two steps that give the bits of one in less time, if there is one.

    One pass of swscale to RGB sums up lines in plain C; to planes it does so with SIMD. The planes
    must be those that it keeps inside, in squares of an even size. It has other ways for pictures
    that are not scaled, and loses bits where it sums up too many lines.
    """
    size, short = geometry.frame_size, min(width, height)
    if geometry.resize is not None or size % 2 or short < SMALLEST:
        return None
    if short // 2 * 2 == size or short > 32 * size:
        return None
    return HALF_AS_WIDE.get(pixels)


def is_clipped(planes: list[np.ndarray], picture: np.ndarray) -> bool:
    """Whether the planes between two steps were too narrow for what one pass would have kept.

    `planes`: luma and two of colour, uint8 [H, W or W/2], as the first step leaves them; `picture`:
    the second's, uint8 [H, W, 3]. A luma beyond its range does no harm where all three colours end
    at the end of theirs.
    """
    luma, *colours = planes
    if any(plane.min() == 0 or plane.max() == 255 for plane in colours):
        return True
    white_is_grey = luma.max() == 255 and picture[luma == 255].min() < 255
    return bool(white_is_grey or (luma.min() == 0 and picture[luma == 0].max() > 0))


def _scale(width: int, height: int, pixels: str) -> Filter:
    # Bicubic is the default of the command line, not of the library.
    rounding = "" if pixels == "rgb24" else "+accurate_rnd"
    return ("scale", f"{width}:{height}:flags=bicubic{rounding}")


def rotation_filters(display_matrix: bytes | None) -> tuple[list[tuple[str, str]], bool]:
    """What the ffmpeg command line does for a display matrix; and whether width and height swap.

    The matrix is nine 16.16 fixed-point numbers (ISO/IEC 14496-12, 6.2.2). Angles that are no
    multiple of 90° are left alone.
    """
    if display_matrix is None or len(display_matrix) < 36:
        return [], False
    a, b, _, c, d, *_ = struct.unpack("=9i", display_matrix[:36])
    scale_x, scale_y = math.hypot(a, c), math.hypot(b, d)
    if scale_x == 0 or scale_y == 0:
        return [], False
    clockwise = round(math.degrees(math.atan2(b / scale_y, a / scale_x))) % 360
    if clockwise in (89, 90, 91):
        return [("transpose", "cclock_flip" if c > 0 else "clock")], True
    if clockwise in (269, 270, 271):
        return [("transpose", "clock_flip" if c < 0 else "cclock")], True
    if clockwise in (179, 180, 181):
        flips = [("hflip", "")] * (a < 0) + [("vflip", "")] * (d < 0)
        return flips, False
    if clockwise == 0 and d < 0:
        return [("vflip", "")], False
    return [], False
