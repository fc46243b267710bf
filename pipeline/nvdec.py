"""NVDEC: decode on a GPU, and make the pictures there too; what it cannot do, the CPU does anew.

Frames stay on the GPU until they are squares of the encoder's size, so that a few hundred KB of
each come to the CPU instead of several MB. Each decoding process has a CUDA context of its own.
"""

from __future__ import annotations

from typing import Protocol

import av
import av.codec
import av.codec.hwaccel
import av.video.codeccontext
import av.video.frame
import numpy as np
from av.video.reformatter import ColorRange

from pipeline.pixels import Crop, Geometry


class UnsuitedError(Exception):
    """The GPU cannot be trusted with this video; the message says why."""


class CpuPainter(Protocol):
    """Makes squares of frames that lie in the CPU's memory."""

    crop: Crop

    def paint(self, frame: av.video.frame.VideoFrame, matrix: bytes | None) -> np.ndarray:
        """A frame as uint8 [frame_size, frame_size, 3] RGB, turned by a display matrix."""


def nvdec_fault(gpu: int) -> str:
    """Why this GPU cannot decode; empty when it can."""
    if "cuda" not in av.codec.hwaccel.hwdevices_available():
        return "this PyAV is built without CUDA"
    try:
        hwaccel(gpu).create(av.codec.Codec("h264", "r"))
    except UnsuitedError as error:
        return str(error)
    except (OSError, RuntimeError, ValueError) as error:
        return f"libav: {error}"
    return ""


def hwaccel(gpu: int) -> av.codec.hwaccel.HWAccel:
    """The decoder of a GPU, whose frames stay there, in torch's own CUDA context.

    Raises:
        UnsuitedError: torch cannot use this GPU.
    """
    # Not at the top: a process that decodes on the CPU has no use for torch.
    import torch

    # torch's context becomes the thread's current one, and libav takes that: PyAV's default, the
    # primary context, is refused once torch has opened it with other flags.
    try:
        torch.zeros(1, device=f"cuda:{gpu}")
        torch.cuda.set_device(gpu)
    except (RuntimeError, AssertionError) as error:  # the second: a torch without CUDA
        raise UnsuitedError(f"torch: {str(error).splitlines()[0]}") from None
    return av.codec.hwaccel.HWAccel(
        "cuda",
        device=gpu,
        allow_software_fallback=True,
        is_hw_owned=True,
        options={"primary_ctx": "0", "current_ctx": "1"},
    )


class GpuPainter:
    """Makes squares of frames where they lie: on the GPU, or on the CPU if that decoded them."""

    def __init__(
        self,
        geometry: Geometry,
        gpu: int,
        *,
        cpu: CpuPainter,
        context: av.video.codeccontext.VideoCodecContext,
    ):
        from pipeline.nv12 import SquareMaker

        self.maker = SquareMaker(geometry, f"cuda:{gpu}")
        self.cpu, self.context = cpu, context
        self.num_squares = 0
        """Made on the GPU."""

    def paint(self, frame: av.video.frame.VideoFrame, matrix: bytes | None) -> np.ndarray:
        """A frame as uint8 [frame_size, frame_size, 3] RGB, turned by a display matrix.

        Raises:
            UnsuitedError: the frame is of a kind that is not made here, or the GPU fails.
        """
        if frame.format.name != "cuda":
            # NVDEC refused the stream, and libav's own decoder took over.
            return self.cpu.paint(frame, matrix)
        self._check(frame)
        try:
            square = self._square(frame, matrix)
        except RuntimeError as error:  # out of memory, or a fault of CUDA
            raise UnsuitedError(f"the GPU fails: {str(error).splitlines()[0]}") from None
        self.num_squares += 1
        return square

    def _square(self, frame: av.video.frame.VideoFrame, matrix: bytes | None) -> np.ndarray:
        from pipeline.nv12 import Look, planes_of

        look = Look(
            height=frame.height,
            width=frame.width,
            space=int(frame.colorspace),
            full_range=frame.color_range == ColorRange.JPEG,
            display_matrix=matrix,
        )
        return self.maker.square(*planes_of(frame.planes, self.maker.device), look)

    def _check(self, frame: av.video.frame.VideoFrame) -> None:
        from pipeline.swscale import WEIGHTS

        size = (frame.width, frame.height)
        if frame.sw_format.name != "nv12":
            raise UnsuitedError(f"its pictures are {frame.sw_format.name}, not nv12")
        if frame.width % 2 or frame.height % 2 or min(size) < 4:
            raise UnsuitedError(f"its size {frame.width}×{frame.height} is odd or tiny")
        if int(frame.colorspace) not in WEIGHTS:
            raise UnsuitedError(f"its matrix of colours has number {int(frame.colorspace)}")
        if any(self.cpu.crop):
            raise UnsuitedError("its container says to cut its pictures")
        # libav cuts what a GPU holds at the right and below only.
        if not self.num_squares and size != (self.context.width, self.context.height):
            raise UnsuitedError("its pictures are cut at the left or above")
