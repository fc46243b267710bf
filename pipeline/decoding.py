"""Decode one video into a stream of events, which also tells how it ended.

Events are plain data: they pass unchanged between processes (`pipeline.decode_pool`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from pipeline.decoded import DecodeReport
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.nvdec import UnsuitedError
from pipeline.pixels import Geometry
from pipeline.video import VideoReader

MISSING = 0.01
"""The part of a length that a header may be off by; where a GPU leaves out more, the CPU looks."""


@dataclass(frozen=True, slots=True)
class Job:
    """One video to decode."""

    number: int
    """By which its events are known."""
    path: str
    declared_seconds: float
    on_cpu: bool = False
    """Even where a GPU decodes: it failed with this video."""
    windows: int | None = None
    """The first so many alone; the report then tells how far that was."""


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
    on_gpu: bool = field(default=False, compare=False)
    """Whether a GPU decoded it."""
    gpu_fault: str = field(default="", compare=False)
    """Why it did not, where one was asked to."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A video is at fault."""

    number: int
    reason: Reason
    message: str


Event = Started | Window | Finished | Failed


def decode_video(
    job: Job, sampling: Sampling, geometry: Geometry, gpu: int | None = None
) -> Generator[Event, None, None]:
    """The events of one video; the one place where a decoding fault becomes an event.

    With `gpu` that GPU decodes. The CPU has the last word on what is damaged or of a kind that the
    GPU does not know: such a video starts anew there.
    """
    fault = "it ended the decoding process" if job.on_cpu else ""
    if gpu is not None and not fault:
        fault = yield from _on_gpu(job, sampling, geometry, gpu)
        if not fault:
            return
    yield Started(job.number)
    reader = _reader(job, sampling, geometry, None)
    try:
        finished = yield from _decoded(job, reader)
    except VideoFault as error:
        yield Failed(job.number, error.reason, error.message)
        return
    yield replace(finished, gpu_fault=fault if gpu is not None else "")


def _on_gpu(
    job: Job, sampling: Sampling, geometry: Geometry, gpu: int
) -> Generator[Event, None, str]:
    """Yield the events of one video; return why the CPU must decode it anew, if it must."""
    yield Started(job.number)
    reader = _reader(job, sampling, geometry, gpu)
    try:
        finished = yield from _decoded(job, reader)
    except UnsuitedError as error:
        return str(error)
    except VideoFault as error:
        return f"there it is {error.reason.value}: {error.message}"
    if finished.report.bad_packets:
        return "some of its packets do not decode there"
    if finished.report.missing_fraction > MISSING:
        return "a part of its length does not decode there"
    yield replace(
        finished, on_gpu=reader.on_gpu, gpu_fault="" if reader.on_gpu else "NVDEC does not know it"
    )
    return ""


def _reader(job: Job, sampling: Sampling, geometry: Geometry, gpu: int | None) -> VideoReader:
    return VideoReader(
        job.path,
        sampling=sampling,
        geometry=geometry,
        declared_seconds=job.declared_seconds,
        gpu=gpu,
    )


def _decoded(job: Job, reader: VideoReader) -> Generator[Event, None, Finished]:
    """Yield a video's windows; return what is to be said at its end."""
    watch = _Watch()
    size_bytes, mtime_ns = _fingerprint(job.path)
    with closing(reader.windows()) as windows:
        for pixels in watch.timed(islice(windows, job.windows)):
            yield Window(job.number, pixels)
    return Finished(job.number, reader.report, size_bytes, mtime_ns, watch.busy, watch.wall)


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
