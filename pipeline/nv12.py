"""Pictures as a GPU's decoder leaves them, turned, cut, scaled and converted on that GPU.

The steps and their arithmetic (`pipeline.swscale`) are those of the CPU's chain of filters
(`pixels.filters`), so that features hardly tell which decoder made them.

Shapes: NV12 has a plane of brightness [H, W] and one of both colours [H/2, W/2, 2]. h, w: the part
that is scaled; S: pixels on a side of the square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.pixels import Geometry, rotation_filters
from pipeline.swscale import HIGHEST, Colours, cubic


class Shareable(Protocol):
    """Memory that libraries share (DLPack)."""

    def __dlpack__(self) -> object:
        """A capsule."""


@dataclass(frozen=True, slots=True)
class Look:
    """What pictures of one video share."""

    height: int
    width: int
    space: int
    """Key of `swscale.WEIGHTS`."""
    full_range: bool
    display_matrix: bytes | None


def planes_of(planes: Sequence[Shareable], device: torch.device) -> tuple[Tensor, Tensor]:
    """The two planes of an NV12 frame as tensors of the memory that they lie in."""
    if device.type == "cuda":
        # The decoder's work on them has no stream that torch could wait for.
        torch.cuda.synchronize(device)
    # Not the planes themselves: torch would name a stream, which PyAV refuses.
    luma_HW, chroma_HW2 = (torch.from_dlpack(plane.__dlpack__()) for plane in planes)
    return luma_HW, chroma_HW2


class SquareMaker:
    """Makes the square that a geometry asks for; the same steps serve all pictures of one look."""

    def __init__(self, geometry: Geometry, device: torch.device | str):
        self.geometry, self.device = geometry, torch.device(device)
        self.look: Look | None = None
        self.steps: _Steps | None = None

    def square(self, luma_HW: Tensor, chroma_HW2: Tensor, look: Look) -> np.ndarray:
        """The RGB square, uint8 [S, S, 3], of two planes of uint8 on the device."""
        if self.steps is None or look != self.look:
            self.steps, self.look = _Steps(self.geometry, look, self.device), look
        return self.steps.square(luma_HW, chroma_HW2).cpu().numpy()


class _Steps:
    """Turn, cut, scale and convert pictures of one look."""

    def __init__(self, geometry: Geometry, look: Look, device: torch.device):
        self.turns, turned = rotation_filters(look.display_matrix)
        height, width = (look.width, look.height) if turned else (look.height, look.width)
        down = _Axis(geometry, height, min(height, width), 0)
        across = _Axis(geometry, width, min(height, width), 1)
        self.rows, self.columns = down.part, across.part
        # Sizes that stay take another way through libswscale, which repeats colours.
        same = down.unscaled and across.unscaled
        self.by_tables = across.scaled % 2 == 0
        matrices = (
            down.weights(subsampled=False),
            across.weights(subsampled=False),
            down.chroma_rows(repeat=same),
            across.chroma_columns(repeat=same),
        )
        self.down_Sh, self.across_Sw, self.colour_down_Sh, self.colour_across_Sw = (
            torch.from_numpy(matrix).to(device, torch.float32) for matrix in matrices
        )
        self.colours = Colours.of(look.space, full_range=look.full_range)

    def square(self, luma_HW: Tensor, chroma_HW2: Tensor) -> Tensor:
        """uint8 [S, S, 3] on the device."""
        luma_hw = _turned(luma_HW, self.turns)[self.rows, self.columns].float()
        rows, columns = _halved(self.rows), _halved(self.columns)
        chroma_hw2 = _turned(chroma_HW2, self.turns)[rows, columns]
        chroma_2hw = chroma_hw2.permute(2, 0, 1).float()
        # As libswscale: lines first, and what overshoots is cut off before columns are summed.
        luma_hS = (luma_hw @ self.across_Sw.T).clamp(max=HIGHEST)
        chroma_2hS = (chroma_2hw @ self.colour_across_Sw.T).clamp(max=HIGHEST)
        y_SS, uv_2SS = self.down_Sh @ luma_hS, self.colour_down_Sh @ chroma_2hS
        if self.by_tables:
            return self.colours.rgb(y_SS, *uv_2SS)
        return self.colours.exact_rgb(y_SS, *uv_2SS)


def _halved(part: slice) -> slice:
    return slice(part.start // 2, part.stop // 2)


def _turned(plane: Tensor, turns: list[tuple[str, str]]) -> Tensor:
    """A plane [H, W, ...] after libavfilter's filters of these names and arguments."""
    for name, argument in turns:
        if name == "transpose":
            plane = plane.transpose(0, 1)
        if name == "hflip" or argument in ("clock", "clock_flip"):
            plane = plane.flip(1)
        if name == "vflip" or argument in ("cclock", "clock_flip"):
            plane = plane.flip(0)
    return plane


class _Axis:
    """Which samples of one axis are scaled, to how many, and which of those are kept."""

    def __init__(self, geometry: Geometry, length: int, short: int, axis: int):
        self.size = geometry.frame_size
        if geometry.resize is None:
            # Colours have half as many samples: the cut begins at an even one.
            start = round((length - short) / 2) & ~1
            self.part, self.scaled, self.first = slice(start, start + short), self.size, 0
        else:
            if isinstance(geometry.resize, tuple):
                self.scaled = geometry.resize[axis]
            else:
                self.scaled = max(self.size, round(length * geometry.resize / short))
            self.part, self.first = slice(0, length), round((self.scaled - self.size) / 2)
        self.length = self.part.stop - self.part.start

    @property
    def unscaled(self) -> bool:
        """Whether the samples stay as they are."""
        return self.length == self.scaled

    def weights(self, *, subsampled: bool) -> np.ndarray:
        """[S, h]: what each sample of the square takes of each sample before."""
        whole = cubic(self.length // 2 if subsampled else self.length, self.scaled)
        return whole[self.first : self.first + self.size]

    def chroma_rows(self, *, repeat: bool) -> np.ndarray:
        """[S, h/2]: a colour for each row."""
        return self._repeated() if repeat else self.weights(subsampled=True)

    def chroma_columns(self, *, repeat: bool) -> np.ndarray:
        """[S, w/2]: a colour for each column, or for each pair of those of the scaled picture."""
        if repeat:
            return self._repeated()
        if self.scaled % 2:
            return self.weights(subsampled=True)
        pairs = cubic(self.length // 2, -(-self.scaled // 2))
        return pairs[np.arange(self.first, self.first + self.size) // 2]

    def _repeated(self) -> np.ndarray:
        samples = np.arange(self.first, self.first + self.size) // 2
        return np.eye(self.length // 2)[np.minimum(samples, self.length // 2 - 1)]
