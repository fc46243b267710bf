"""Videos read back: their pictures and numbers, and what the command line makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.decoded import DecodeReport
from pipeline.formats.manifest import VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry
from pipeline.video import VideoReader
from tests.videos import (
    command_line,
    number_of,
)


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
