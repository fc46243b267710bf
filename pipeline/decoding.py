"""Decode one video into a stream of events, which also tells how it ended.

Events are plain data: they pass unchanged between processes (`pipeline.decode_pool`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.decoded import DecodeReport
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry
from pipeline.video import VideoReader


@dataclass(frozen=True, slots=True)
class Job:
    """One video to decode."""

    number: int
    """By which its events are known."""
    path: str
    declared_seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    """A video begins, perhaps anew: what came of it before counts for nothing."""

    number: int


@dataclass(frozen=True, slots=True)
class Window:
    """The next window of a video."""

    number: int
    pixels: np.ndarray
    """RGB, uint8 [frames, H, W, 3]."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A video has come to its end."""

    number: int
    report: DecodeReport
    size_bytes: int
    mtime_ns: int
    """Of the file that was decoded, which may be newer than the manifest."""
    busy_seconds: float = field(default=0.0, compare=False)
    """Of a CPU, while it was decoded..."""
    wall_seconds: float = field(default=0.0, compare=False)
    """...and of the clock; the rest was spent on waiting for the disk, or for a CPU."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A video is at fault."""

    number: int
    reason: Reason
    message: str


Event = Started | Window | Finished | Failed


def decode_video(
    job: Job, sampling: Sampling, geometry: Geometry, gpu: int | None = None
) -> Iterator[Event]:
    """The events of one video; the one place where a decoding fault becomes an event.

    `gpu`: decode on it, as `VideoReader` does.
    """
    yield Started(job.number)
    watch = _Watch()
    reader = VideoReader(
        job.path,
        sampling=sampling,
        geometry=geometry,
        declared_seconds=job.declared_seconds,
        gpu=gpu,
    )
    try:
        size_bytes, mtime_ns = _fingerprint(job.path)
        for pixels in watch.timed(reader.windows()):
            yield Window(job.number, pixels)
    except VideoFault as fault:
        yield Failed(job.number, fault.reason, fault.message)
        return
    assert reader.report is not None
    yield Finished(job.number, reader.report, size_bytes, mtime_ns, watch.busy, watch.wall)


class _Watch:
    """Time that an iterator takes for itself, not what is done with its items."""

    def __init__(self):
        self.busy = self.wall = 0.0

    def timed(self, items: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the same items."""
        while True:
            busy, wall = time.thread_time(), time.perf_counter()
            item = next(items, None)
            self.busy += time.thread_time() - busy
            self.wall += time.perf_counter() - wall
            if item is None:
                return
            yield item


def _fingerprint(path: str) -> tuple[int, int]:
    """Size and mtime of a file that the manifest has seen, but that may have gone since."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise VideoFault(Reason.MISSING, f"gone since the manifest: {error.strerror}") from None
    return found.st_size, found.st_mtime_ns
