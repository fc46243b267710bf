"""Decode a video once, in order, into the windows of pictures that an encoder looks at.

Time is the truth: a frame is placed by its timestamp on the caption clock (`pipeline.grid`), never
by its number. A packet that does not decode loses only itself, and is counted. One thread decodes:
parallel work is done by processes, one video each, which can be killed; the log level of PyAV stays
as it is, because setting it can deadlock libav's own threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from fractions import Fraction
from pathlib import Path

import av
import av.codec
import av.container
import av.format
import av.stream
import av.video.frame
import av.video.stream
import numpy as np

from pipeline.decoded import DecodeReport, Lengths
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.grid import Clock, FrameTimes, WindowBuffer
from pipeline.nvdec import GpuPainter, hwaccel
from pipeline.painter import Painter, display_matrix
from pipeline.pixels import Geometry
from pipeline.probe import CONTAINERS, check_file, clock_seconds
from pipeline.unshown import BrokenPromiseError, Unshown

MAX_PIXELS = 2**27
"""Of one frame (8K has 2**25): a header that claims more gets no memory."""

__all__ = ["DecodeReport", "Geometry", "VideoReader"]


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
        self.report: DecodeReport | None = None
        """Set once `windows` is exhausted."""
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
            found = f"none of {self._source.packets} packets gave a frame"
            raise VideoFault(Reason.NO_FRAMES, found)
        self.report = self._source.report()

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
            source = self._source = _Source(container, self.sampling.frame_rate, synthetic)
            if thrifty and self.gpu is None:
                source.leave_out_unshown()
            source.lengths.file_seconds = source.lengths.file_seconds or self.declared_seconds
            painter = self.painter = self._painter(source.stream)
            buffer = WindowBuffer(self.sampling)
            for frame, slots in source.placed_frames():
                picture = None
                for slot in filter(buffer.needs, slots):
                    picture = painter.paint(frame) if picture is None else picture
                    window = buffer.push(slot, picture)
                    if window is not None:
                        yield window
            window = buffer.finish(source.times.num_frames)
            if window is not None:
                yield window

    def _painter(self, stream: av.video.stream.VideoStream) -> Painter | GpuPainter:
        painter = Painter(self.geometry, stream.time_base)
        if self.gpu is None:
            return painter
        context, matrix = stream.codec_context, display_matrix
        return GpuPainter(
            self.geometry, self.gpu, cpu=painter, context=context, display_matrix=matrix
        )

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU made the pictures."""
        return isinstance(self.painter, GpuPainter) and self.painter.num_squares > 0


def open_video(path: Path, gpu: int | None = None) -> av.container.InputContainer:
    """Open one local file, and nothing that it may point to."""
    try:
        container = av.open(
            f"file:{path.absolute()}",
            container_options={"protocol_whitelist": "file", "format_whitelist": CONTAINERS},
            metadata_errors="replace",
            hwaccel=None if gpu is None else hwaccel(gpu),
        )
    except av.ArgumentError:
        allowed = "it is a text, a picture or a playlist, or of a container that is not read"
        raise VideoFault(Reason.UNREADABLE, allowed) from None
    # PyAV asks libav to invent the pts that AVI lacks; they come out a frame late, or shuffled.
    container.flags &= ~av.container.Flags.gen_pts.value
    return container


def _is_cover(stream: av.stream.Stream) -> bool:
    covers = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
    return bool(stream.disposition & covers)


def best_stream(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    """What libav calls the best video stream; cover pictures do not count."""
    best = container.streams.best("video")
    if best is None or _is_cover(best):
        others = [stream for stream in container.streams.video if not _is_cover(stream)]
        best = others[0] if others else None
    if best is None:
        kinds = {"cover" if _is_cover(stream) else stream.type for stream in container.streams}
        found = ", ".join(sorted(kinds)) or "none"
        raise VideoFault(Reason.NO_VIDEO_STREAM, f"its streams: {found}")
    if best.codec_context is None:
        raise VideoFault(Reason.UNREADABLE, "libav has no decoder for its video stream")
    return best


def start_seconds(container: av.container.InputContainer) -> Fraction:
    """The zero of the caption clock, on the clock of the file's timestamps.

    Broadcast streams carry tables that start long before anything is heard or seen; there the
    command line, too, looks at the streams themselves.
    """
    starts = [
        stream.start_time * stream.time_base
        for stream in container.streams
        if stream.type in ("video", "audio") and stream.start_time is not None
    ]
    if container.format.flags & av.format.Flags.ts_discont.value and starts:
        return min(starts)
    return Fraction(container.start_time or 0, av.time_base)


class _Source:
    """The frames of a container's best video stream, with their places, and what was counted."""

    def __init__(self, container: av.container.InputContainer, frame_rate: float, synthetic: bool):
        self.container = container
        self.stream = best_stream(container)
        self.stream.codec_context.thread_type = "NONE"
        self.stream.codec_context.thread_count = 1
        self.stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        self.synthetic = synthetic
        self.times = self._times(frame_rate)
        self.unshown: Unshown | None = None
        self.frames = self.packets = self.bad_packets = 0
        self.lengths = self._lengths()

    def _times(self, frame_rate: float) -> FrameTimes:
        rate = self.stream.average_rate or self.stream.guessed_rate or Fraction(25)
        time_base = 1 / rate if self.synthetic else self.stream.time_base
        start = Fraction(0) if self.synthetic else start_seconds(self.container)
        clock = Clock(time_base, start_seconds=start, frame_rate=frame_rate)
        return FrameTimes(clock, usual_step=max(1, round(1 / (rate * time_base))))

    def _lengths(self) -> Lengths:
        start = float(start_seconds(self.container))
        own_start = float((self.stream.start_time or 0) * self.stream.time_base)
        # Matroska tags the stream's end rather than its length.
        tagged = clock_seconds(self.stream.metadata.get("DURATION")) - own_start
        own = float((self.stream.duration or 0) * self.stream.time_base)
        return Lengths(
            stream_seconds=own or max(0.0, tagged),
            file_seconds=(self.container.duration or 0) / av.time_base,
            start_seconds=start,
            late_seconds=max(0.0, own_start - start),
        )

    def leave_out_unshown(self) -> None:
        """Decode no frame that is neither shown nor needed for others, where that is safe.

        Of H.264 alone it is known which frames nothing refers to; the rest is decoded in full.
        """
        if self.stream.codec_context.name == "h264":
            self.unshown = Unshown(self.times.clock)
            # A damaged frame must be known before any that is made from it comes out.
            self.stream.codec_context.options |= {"err_detect": "explode"}

    def placed_frames(self) -> Iterator[tuple[av.video.frame.VideoFrame, range]]:
        """Yield (frame, the slots that show it), leaving out frames that no slot shows.

        Raises:
            BrokenPromiseError: a frame that was left out is shown.
        """
        pending = None
        for frame in self._timed():
            if self.synthetic:
                slots = self.times.place(self.frames, None, 1)
            else:
                slots = self.times.place(frame.pts, frame.dts, frame.duration)
            self.frames += 1
            if slots is None:
                continue
            if slots:
                if isinstance(pending, av.Packet):
                    raise BrokenPromiseError
                yield pending, slots
            pending = frame
        if pending is not None:
            yield pending, self.times.finish()

    def _timed(self) -> Iterator[av.video.frame.VideoFrame | av.Packet]:
        """The frames, and in their places the packets whose frames were left out."""
        if self.unshown is None:
            yield from self._decoded(self._demuxed())
            return
        for frame in self._decoded(self._thinned(self.unshown)):
            yield from self.unshown.before(frame)
            yield frame
        self.unshown.finish()

    def _thinned(self, account: Unshown) -> Iterator[av.Packet]:
        """The packets, with the decoder told before each whether it may leave out its frame."""
        for packet, unshown in account.plan(self._demuxed()):
            self.stream.codec_context.skip_frame = "NONREF" if unshown else "DEFAULT"
            yield packet

    def _decoded(self, packets: Iterator[av.Packet]) -> Iterator[av.video.frame.VideoFrame]:
        for packet in packets:
            try:
                frames = packet.decode()
            except av.FFmpegError:
                if self.unshown is not None:
                    raise BrokenPromiseError from None
                self.bad_packets += 1
            else:
                yield from frames
        try:
            frames = self.stream.codec_context.decode(None)
        except av.FFmpegError:
            return
        yield from frames

    def _demuxed(self) -> Iterator[av.Packet]:
        """The stream's packets; how far the other streams reach is noted in passing."""
        others = [] if self.lengths.stream_seconds else self.container.streams
        packets = self.container.demux([self.stream, *others])
        while True:
            try:
                packet = next(packets, None)
            except av.FFmpegError:
                # What follows cannot be read; frames that are waiting can still come out.
                self.packets += 1
                self.bad_packets += 1
                return
            except IndexError:
                # The end, where PyAV stumbles over a stream that turned up on the way.
                return
            if packet is None:
                return
            if packet.pts is not None:
                self.lengths.reach(float((packet.pts + (packet.duration or 0)) * packet.time_base))
            # An empty packet would tell the decoder that the end has come.
            if packet.stream_index == self.stream.index and packet.size:
                self.packets += 1
                yield packet

    def report(self) -> DecodeReport:
        """Sum up, after the last frame."""
        return DecodeReport(
            num_frames=self.times.num_frames,
            decoded_seconds=self.times.decoded_seconds,
            end_seconds=self.times.end_seconds,
            packets=self.packets,
            bad_packets=self.bad_packets,
            missing_fraction=self.lengths.missing_fraction(self.times.decoded_seconds),
            synthetic_pts=self.synthetic,
        )
