"""The packets of a file's video stream, and what all packets tell of its length and its damage."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import av.container
import av.format
import av.video.stream

from pipeline.avi import empty_chunks_at_end
from pipeline.decoded import CUT_SECONDS, Lengths
from pipeline.holes import OVERHEAD_BYTES, Holes
from pipeline.matroska import segment_end
from pipeline.probe import clock_seconds

MATROSKA = "matroska,webm"
MAX_TRIES = 1000
"""At finding a packet behind a place that holds none; MPEG-TS looks through 128 KiB at each."""


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
    if _begins_anywhere(container) and starts:
        return min(starts)
    return Fraction(container.start_time or 0, av.time_base)


def _begins_anywhere(container: av.container.InputContainer) -> bool:
    """Whether its timestamps are those of a broadcast; others count from 0."""
    return bool(container.format.flags & av.format.Flags.ts_discont.value)


class PacketReader:
    """Reads a container once, for one of its streams."""

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.video.stream.VideoStream,
        *,
        usual_step: int,
    ):
        """`usual_step`: ticks of the stream from one packet to the next, where it does not say."""
        self.container, self.stream = container, stream
        self.count = self.bad = 0
        """Packets of the stream, and those of them that cannot be read."""
        self.last_picture_until: int | None = None
        """The tick up to which empty packets, or a length, leave the last picture standing."""
        self.lengths = self._declared()
        self._path = Path(container.name.removeprefix("file:"))
        self._demuxer = container.format.name
        self._holes = Holes(stream.index, usual_step=usual_step, demuxer=self._demuxer)
        self._ends: dict[int, int] = {}
        """How far the packets of each stream reach, in its own ticks."""

    def _declared(self) -> Lengths:
        stream, container = self.stream, self.container
        start = float(start_seconds(container))
        return Lengths(
            stream_seconds=float((stream.duration or 0) * stream.time_base),
            stream_start=float((stream.start_time or 0) * stream.time_base),
            # Matroska tags the stream's end rather than its length.
            tagged_end=clock_seconds(stream.metadata.get("DURATION")),
            file_seconds=(container.duration or 0) / av.time_base,
            zero=start if _begins_anywhere(container) else 0.0,
            start=start,
        )

    def read(self) -> Iterator[av.Packet]:
        """The stream's packets that hold something."""
        for packet in self._all():
            self._note(packet)
            # An empty packet would tell the decoder that the end has come.
            if packet.stream_index == self.stream.index and packet.size:
                self.count += 1
                yield packet
        self._sum_up()

    def _all(self) -> Iterator[av.Packet]:
        """The file's packets, up to where the demuxer gives up."""
        own, whole = self.lengths.stream_seconds, self.lengths.file_seconds
        # How far others reach matters where libav may have filled in what this one does not say.
        others = [] if own and abs(own - whole) > 1e-3 else self.container.streams
        tries, packets = 0, self.container.demux([self.stream, *others])
        while True:
            try:
                packet = next(packets, None)
            except av.FFmpegError as error:
                self._holes.note_damage()
                tries += 1
                if isinstance(error, BlockingIOError) and tries < MAX_TRIES:
                    # It found nothing in as much as it looks through at a time, and can go on.
                    packets = self.container.demux([self.stream, *others])
                    continue
                # What follows cannot be read; frames that are waiting can still come out.
                self.count += 1
                self.bad += 1
                return
            except IndexError:
                # The end, where PyAV stumbles over a stream that turned up on the way.
                return
            if packet is None:
                return
            yield packet

    def _note(self, packet: av.Packet) -> None:
        """Note what a packet of any stream tells."""
        lost = self._holes.lost_before(packet)
        self.count += lost
        self.bad += lost
        tick = packet.dts if packet.pts is None else packet.pts
        if tick is None:
            return
        index, duration = packet.stream_index, packet.duration or 0
        self._ends[index] = max(tick + duration, self._ends.get(index, tick))
        if index != self.stream.index:
            return
        if packet.is_discard:
            self.lengths.discarded_seconds += float(duration * packet.time_base)
        elif self.lengths.first is None:
            self.lengths.first = float(tick * packet.time_base)
        if not packet.size:  # In AVI: as before.
            self.last_picture_until = tick + duration

    def _sum_up(self) -> None:
        """When all is read: how far the packets reach, and whether the last picture stands."""
        streams, lengths = self.container.streams, self.lengths
        ends = [end * streams[index].time_base for index, end in self._ends.items()]
        lengths.reached = float(max(ends, default=-math.inf))
        own = self._ends.get(self.stream.index, 0)
        missing = lengths.file_seconds - own * self.stream.time_base > CUT_SECONDS
        if missing and self._demuxer == "avi":
            self.last_picture_until = own + empty_chunks_at_end(self._path, self.stream.index)
        elif missing and not lengths.tagged_end and self._demuxer == MATROSKA and self._is_whole():
            self.last_picture_until = round(lengths.file_seconds / self.stream.time_base)

    def _is_whole(self) -> bool:
        """Whether a Matroska file lacks no bytes: hardly any at its end are not those of packets.

        Its index may stand there, a fraction of the whole.
        """
        end = segment_end(self._path)
        if self.bad or end is None or end > self.container.size:
            return False
        return end - self._holes.end_byte <= OVERHEAD_BYTES[MATROSKA] + end // 50
