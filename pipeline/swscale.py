"""How libswscale scales a picture and makes RGB of it, written in torch.

It scales brightness and colour on their own, with a bicubic kernel (a = -0.6) that is as wide as
the picture shrinks. Where the scaled picture is of even width it gives two pixels side by side one
colour, rounds to 8 bits, and converts by tables of whole numbers, which makes pictures of limited
range 1.8 of 255 darker than they are; where it is of odd width it does none of this. Found by
comparing its pictures with those of this module (tests/test_nv12.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

WEIGHTS = {
    1: (0.2126, 0.0722),
    2: (0.299, 0.114),
    4: (0.30, 0.11),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}
"""Of red and blue in the brightness, by libav's number of the matrix (ITU-T H.273, table 4). 2 is
unspecified, which the ffmpeg command line takes for BT.601 at any size."""
SHARPNESS = -0.6
"""The a of Keys' cubic kernel (1981), as libswscale has it."""
HIGHEST = ((1 << 15) - 1) / (1 << 7)
"""Lines are kept in 15 bits, of which 7 are behind the point."""
ONE = 1 << 16
"""Whole numbers of 16 binary places stand for fractions."""


def cubic(before: int, after: int) -> np.ndarray:
    """[after, before]: weights that scale `before` samples to `after`; edges are repeated."""
    scale = before / after
    wide = max(scale, 1.0)
    matrix = np.zeros((after, before))
    for index in range(after):
        centre = (index + 0.5) * scale - 0.5
        samples = np.arange(math.floor(centre - 2 * wide), math.ceil(centre + 2 * wide) + 1)
        weights = _kernel(np.abs(samples - centre) / wide)
        np.add.at(matrix[index], samples.clip(0, before - 1), weights / weights.sum())
    return matrix


def _kernel(distance: np.ndarray) -> np.ndarray:
    a, d = SHARPNESS, distance
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    return np.where(d < 1, near, np.where(d < 2, far, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """The conversion to RGB by libswscale's tables, in whole numbers of 16 binary places."""

    gain: int
    """What a step of Y is worth in RGB."""
    offset: int
    """RGB of Y = 0."""
    black: int
    """Y of RGB = 0."""
    red_v: int
    """Steps of Y that a step of V is worth in red, and so on."""
    green_u: int
    green_v: int
    blue_u: int

    @classmethod
    def of(cls, space: int, *, full_range: bool) -> Colours:
        """Those of a matrix, a key of `WEIGHTS`, and a range (ITU-T H.273, 8.3)."""
        red, blue = WEIGHTS[space]
        green = 1 - red - blue
        per_step = [2 * (1 - red), -2 * (1 - blue) * blue / green]
        per_step += [-2 * (1 - red) * red / green, 2 * (1 - blue)]
        gain = ONE if full_range else ONE * 255 // 219
        # libswscale's constants: Y is looked up 326 places behind what stands for -384.
        offset = 0 if full_range else 326 * gain - (384 + 16) * ONE
        unit = ONE if full_range else ONE * 255 / 224
        steps = [math.floor(abs(value) * unit + 1e-6) * ONE for value in per_step]
        in_luma = [
            int(math.copysign((step + ONE // 2) // gain, value))
            for step, value in zip(steps, per_step, strict=True)
        ]
        return cls(
            gain=gain,
            offset=offset,
            black=0 if full_range else 16,
            red_v=in_luma[0],
            green_u=in_luma[1],
            green_v=in_luma[2],
            blue_u=in_luma[3],
        )

    def rgb(self, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Float planes of about 0 to 255 -> uint8 [..., 3]."""
        # Colours are cut off at 8 bits, brightness is not.
        y = y.round().to(torch.int32)
        u, v = (plane.round().clamp(0, 255).to(torch.int32) for plane in (u, v))
        luma = [
            y + _steps_of(v, self.red_v),
            y + _steps_of(u, self.green_u) + _steps_of(v, self.green_v),
            y + _steps_of(u, self.blue_u),
        ]
        values = (torch.stack(luma, dim=-1) * self.gain + (self.offset + ONE // 2)) >> 16
        return values.clamp(0, 255).to(torch.uint8)

    def exact_rgb(self, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """As `rgb`, with fractions all the way."""
        y, u, v = (y - self.black) * ONE, u - 128, v - 128
        luma = [y + self.red_v * v, y + self.green_u * u + self.green_v * v, y + self.blue_u * u]
        values = torch.stack(luma, dim=-1) * (self.gain / ONE**2)
        return values.round().clamp(0, 255).to(torch.uint8)


def _steps_of(chroma: Tensor, worth: int) -> Tensor:
    """What a colour is worth, 128 standing for none; both are rounded down."""
    return ((chroma * worth) >> 16) - (worth >> 9)
