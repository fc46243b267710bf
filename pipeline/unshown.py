"""Which packets of a video need not be decoded, because the grid shows none of their frames.

A frame is shown only if no later one falls into the same slot of the grid, and the timestamps that
decide it stand on the packets, before anything is decoded. So a decoder may pass over a frame that
is not shown, unless other frames are made from it, which it knows itself. What it passes over still
has its place in time: slots, gaps and lengths are those of the whole video.

All this rests on a promise: every other packet gives its frame, whole, and frames come in the order
of time. A file that breaks it is read once more, and decoded in full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from pipeline.grid import Clock

LOOK_AHEAD = 16
"""Packets that are read before one is decoded; frames are reordered over no greater distance."""


class Stamped(Protocol):
    """A packet, or the frame that came of it."""

    pts: Any
    """An int, or None where nothing is known."""
    is_corrupt: bool


class Packet(Stamped, Protocol):
    """A packet, with what the container says of it."""

    is_discard: bool


class BrokenPromiseError(Exception):
    """A packet did not give its frame: one that was passed over may be shown in its place, or may
    have lent it parts.
    """


class Unshown:
    """The account of one stream's packets, from when they are read to when their frames come."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._near: deque[tuple[int, int]] = deque(maxlen=2 * LOOK_AHEAD)
        """Slots and times of the packets around the one that is decoded."""
        self._due: dict[int, Packet | None] = {}
        """The times of decoded packets without a frame so far; with those that may remain so."""
        self._latest: int | None = None

    def plan(self, packets: Iterable[Packet]) -> Iterator[tuple[Packet, bool]]:
        """Yield each packet to decode, and whether its frame may be passed over.

        Raises:
            BrokenPromiseError: a packet has no timestamp, or that of another.
        """
        ahead: deque[Packet] = deque()
        for packet in packets:
            self._read(packet)
            ahead.append(packet)
            if len(ahead) > LOOK_AHEAD:
                current = ahead.popleft()
                yield current, self._may_pass_over(current)
        for current in ahead:
            yield current, self._may_pass_over(current)

    def before(self, frame: Stamped) -> list[Packet]:
        """The packets, in the order of time, that were passed over before this frame came.

        Raises:
            BrokenPromiseError: the frame comes out of order or is mended with parts of others,
                or another before it did not come.
        """
        if frame.is_corrupt or frame.pts not in self._due:
            raise BrokenPromiseError
        if self._latest is not None and frame.pts < self._latest:
            raise BrokenPromiseError
        self._latest = frame.pts
        times = sorted(pts for pts in self._due if pts <= frame.pts)
        *due, _ = [self._due.pop(pts) for pts in times]
        packets = [packet for packet in due if packet is not None]
        if len(packets) < len(due):
            raise BrokenPromiseError
        return packets

    def finish(self) -> None:
        """All packets are decoded.

        Raises:
            BrokenPromiseError: some frames have not come.
        """
        if self._due:
            raise BrokenPromiseError

    def _read(self, packet: Packet) -> None:
        if packet.pts is None:
            raise BrokenPromiseError
        if not packet.is_discard:
            self._near.append((self._clock.slot(packet.pts), packet.pts))

    def _may_pass_over(self, packet: Packet) -> bool:
        if packet.is_discard:  # It lies before the file's own start, and gives no frame.
            return False
        if packet.pts in self._due:
            raise BrokenPromiseError
        here = self._clock.slot(packet.pts)
        unshown = any(slot == here and pts > packet.pts for slot, pts in self._near)
        unshown = unshown and not packet.is_corrupt
        self._due[packet.pts] = packet if unshown else None
        return unshown
