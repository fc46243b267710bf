"""Decode a video once, in order, into the windows of pictures that an encoder looks at.

Time is the truth: a frame is placed by its timestamp on the caption clock (`pipeline.grid`), never
by its number.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from pathlib import Path

import av
import av.video.stream
import numpy as np

from pipeline.decoded import DecodeReport
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.grid import WindowBuffer
from pipeline.matroska import container_crop
from pipeline.nvdec import GpuPainter
from pipeline.painter import Painter
from pipeline.pixels import Geometry
from pipeline.probe import check_file
from pipeline.unshown import BrokenPromiseError
from pipeline.video_stream import StreamReader, open_video


class VideoReader:
    """One pass over one video.

    `declared_seconds` is the length to expect when the file itself declares none. With `gpu`, that
    GPU decodes (NVDEC) and makes the pictures; streams that it does not know at all libav decodes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        sampling: Sampling,
        geometry: Geometry,
        declared_seconds: float = 0,
        gpu: int | None = None,
    ):
        self.path = Path(path)
        self.sampling = sampling
        self.geometry = geometry
        self.declared_seconds = declared_seconds
        self.gpu = gpu
        self.painter: Painter | GpuPainter | None = None

    def windows(self) -> Generator[np.ndarray, None, None]:
        """Yield uint8 [frames, frame_size, frame_size, 3] RGB windows in order.

        There are `sampling.num_vectors(report.num_frames)` of them; the last is filled as
        `sampling.tail` says. Memory does not grow with the length of the video.

        Raises:
            VideoFault: what `check_file` raises, UNREADABLE, NO_VIDEO_STREAM, NO_FRAMES (none
                decodes) or DISCONTINUOUS (timestamps jump).
            UnsuitedError: with `gpu`: pictures that this GPU does not make as the CPU would.
        """
        check_file(self.path)
        try:
            yield from self._whole_video()
        except av.FFmpegError as error:
            raise VideoFault(Reason.UNREADABLE, f"libav: {error.strerror}") from None
        if self._source.times.first is None:
            found = f"none of {self._source.packets.count} packets gave a frame"
            raise VideoFault(Reason.NO_FRAMES, found)

    @property
    def report(self) -> DecodeReport:
        """What the pass has found out so far; of the whole video once `windows` is exhausted."""
        return self._source.report()

    def _whole_video(self) -> Iterator[np.ndarray]:
        """Decode what is shown; where the file does not allow that, all of it."""
        given = 0
        try:
            for window in self._read(thrifty=True):
                yield window
                given += 1
        except BrokenPromiseError:
            # Up to where the promise was broken, both ways show the same.
            yield from itertools.islice(self._read(), given, None)
        if self._source.frames and self._source.times.first is None:
            yield from self._read(synthetic=True)

    def _read(self, *, thrifty: bool = False, synthetic: bool = False) -> Iterator[np.ndarray]:
        """Yield the windows, leaving what was read in `_source`; no timestamps, no windows."""
        with open_video(self.path, self.gpu) as container:
            source = self._source = StreamReader(container, self.sampling.frame_rate, synthetic)
            if thrifty and self.gpu is None:
                source.leave_out_unshown()
            lengths = source.packets.lengths
            lengths.file_seconds = lengths.file_seconds or self.declared_seconds
            painter = self.painter = self._painter(source.stream)
            buffer = WindowBuffer(self.sampling)
            for frame, matrix, slots in source.placed_frames():
                picture = None
                for slot in filter(buffer.needs, slots):
                    picture = painter.paint(frame, matrix) if picture is None else picture
                    window = buffer.push(slot, picture)
                    if window is not None:
                        yield window
            window = buffer.finish(source.times.num_frames)
            if window is not None:
                yield window

    def _painter(self, stream: av.video.stream.VideoStream) -> Painter | GpuPainter:
        painter = Painter(self.geometry, stream.time_base, container_crop(stream))
        if self.gpu is None:
            return painter
        return GpuPainter(self.geometry, self.gpu, cpu=painter, context=stream.codec_context)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU made the pictures."""
        return isinstance(self.painter, GpuPainter) and self.painter.num_squares > 0
