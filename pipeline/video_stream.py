"""The best video stream of a file: its packets, its frames with their places, and what was counted.

A packet that does not decode loses only itself, and is counted. One thread decodes: parallel work
is done by processes, one video each, which can be killed; the log level of PyAV stays as it is,
because setting it can deadlock libav's own threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import av.codec.context
import av.container
import av.stream
import av.video.frame
import av.video.stream

from pipeline.decoded import DecodeReport
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.grid import Clock, FrameTimes
from pipeline.nvdec import hwaccel
from pipeline.packets import PacketReader, start_seconds
from pipeline.painter import display_matrix
from pipeline.probe import CONTAINERS
from pipeline.unshown import BrokenPromiseError, Unshown

MAX_PIXELS = 2**27
"""Of one frame (8K has 2**25): a header that claims more gets no memory."""


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
        allowed = (
            "it is a text, a picture, a playlist, a row of JPEG pictures whose name does not end"
            " in .mjpeg, or of a container that is not read"
        )
        raise VideoFault(Reason.UNREADABLE, allowed) from None
    for stream in container.streams.video:
        if stream.codec_context is not None:
            # Otherwise libav cuts less at the left of a picture than its header says.
            stream.codec_context.flags |= av.codec.context.Flags.unaligned.value
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


class StreamReader:
    """The frames of a container's best video stream, with their places, and what was counted."""

    def __init__(
        self,
        container: av.container.InputContainer,
        frame_rate: float,
        synthetic: bool,
        zero_seconds: Fraction = Fraction(0),
    ):
        """Slot 0 is `zero_seconds` on the caption clock: for whoever seeks, before reading."""
        self.container = container
        self.stream = best_stream(container)
        self.stream.codec_context.thread_type = "NONE"
        self.stream.codec_context.thread_count = 1
        self.stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        self.synthetic = synthetic
        self.times = self._times(frame_rate, zero_seconds)
        self.unshown: Unshown | None = None
        self.frames = 0
        self.packets = PacketReader(container, self.stream, usual_step=self.times.usual_step)

    def _times(self, frame_rate: float, zero_seconds: Fraction) -> FrameTimes:
        rate = self.stream.average_rate or self.stream.guessed_rate or Fraction(25)
        time_base = 1 / rate if self.synthetic else self.stream.time_base
        start = Fraction(0) if self.synthetic else start_seconds(self.container)
        clock = Clock(time_base, start_seconds=start + zero_seconds, frame_rate=frame_rate)
        return FrameTimes(clock, usual_step=max(1, round(1 / (rate * time_base))))

    def leave_out_unshown(self) -> None:
        """Decode no frame that is neither shown nor needed for others, where that is safe.

        Of H.264 alone it is known which frames nothing refers to; the rest is decoded in full.
        """
        if self.stream.codec_context.name == "h264":
            self.unshown = Unshown(self.times.clock)
            # A damaged frame must be known before any that is made from it comes out.
            self.stream.codec_context.options |= {"err_detect": "explode"}

    def placed_frames(self) -> Iterator[tuple[av.video.frame.VideoFrame, bytes | None, range]]:
        """Yield (frame, its display matrix, the slots that show it), leaving out frames that no
        slot shows.

        Raises:
            BrokenPromiseError: a frame that was left out is shown.
        """
        pending = shown = matrix = None
        for frame in self._timed():
            # Some codecs say it once, for all frames to come.
            if not isinstance(frame, av.Packet):
                matrix = display_matrix(frame) or matrix
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
                yield pending, shown, slots
            pending, shown = frame, matrix
        if pending is not None:
            until = None if self.synthetic else self.packets.last_picture_until
            yield pending, shown, self.times.finish(until)

    def _timed(self) -> Iterator[av.video.frame.VideoFrame | av.Packet]:
        """The frames, and in their places the packets whose frames were left out."""
        if self.unshown is None:
            yield from self._decoded(self.packets.read())
            return
        for frame in self._decoded(self._thinned(self.unshown)):
            yield from self.unshown.before(frame)
            yield frame
        self.unshown.finish()

    def _thinned(self, account: Unshown) -> Iterator[av.Packet]:
        """The packets, with the decoder told before each whether it may leave out its frame."""
        for packet, unshown in account.plan(self.packets.read()):
            self.stream.codec_context.skip_frame = "NONREF" if unshown else "DEFAULT"
            yield packet

    def _decoded(self, packets: Iterator[av.Packet]) -> Iterator[av.video.frame.VideoFrame]:
        for packet in packets:
            try:
                frames = packet.decode()
            except av.FFmpegError:
                if self.unshown is not None:
                    raise BrokenPromiseError from None
                self.packets.bad += 1
            else:
                yield from frames
        try:
            frames = self.stream.codec_context.decode(None)
        except av.FFmpegError:
            return
        yield from frames

    def report(self) -> DecodeReport:
        """Sum up, after the last frame."""
        times, packets = self.times, self.packets
        return DecodeReport(
            num_frames=times.num_frames,
            decoded_seconds=times.decoded_seconds,
            end_seconds=times.end_seconds,
            packets=packets.count,
            bad_packets=packets.bad,
            missing_fraction=packets.lengths.missing_fraction(times.decoded_seconds),
            synthetic_pts=self.synthetic,
        )
