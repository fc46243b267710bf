"""Frames as NVDEC leaves them, but in the CPU's memory: what tests use where no GPU is."""

from __future__ import annotations

from types import SimpleNamespace

import av
import numpy as np


def plane_of(frame: av.VideoFrame, index: int) -> np.ndarray:
    """A plane of 8 bits without the padding of its lines."""
    plane = frame.planes[index]
    lines = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return lines[:, : plane.width].copy()


def nv12_of(frame: av.VideoFrame) -> tuple[np.ndarray, np.ndarray]:
    """The planes of a yuv420p frame as NV12 holds them: [H, W] and [H/2, W/2, 2]."""
    luma, *chroma = (plane_of(frame, index) for index in range(3))
    return luma, np.stack(chroma, axis=-1)


class OnGpu:
    """A frame of NVDEC's kind that holds the pixels of a frame of libav's own decoder."""

    def __init__(self, frame: av.VideoFrame, **changes: object):
        self.frame = frame
        self.format = SimpleNamespace(name="cuda")
        self.sw_format = SimpleNamespace(name="nv12")
        self.width, self.height = frame.width, frame.height
        self.colorspace, self.color_range = frame.colorspace, frame.color_range
        self.planes = nv12_of(frame)
        for name, value in changes.items():
            setattr(self, name, value)
