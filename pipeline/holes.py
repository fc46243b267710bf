"""Packets that a damaged place of a file has swallowed: the demuxer goes on behind it, silently.

In time such a hole is a picture that stands still, and screen recordings are full of those. So a
gap in time counts only where the bytes are damaged too.
"""

from __future__ import annotations

from typing import Any, Protocol

OVERHEAD_BYTES = 4096
"""May lie between two packets of a container that packs them closely, beside a picture's alpha,
which is smaller than the picture."""


class Packet(Protocol):
    """What a demuxer says of a packet."""

    stream_index: int
    pts: Any
    """An int, or None where nothing is known."""
    duration: Any
    pos: Any
    size: int
    is_corrupt: bool


class Holes:
    """Counts the lost packets of one stream, from the packets of all."""

    def __init__(self, stream_index: int, *, usual_step: int, closely_packed: bool):
        """`usual_step` ticks are a packet's duration when it has none itself."""
        self._stream_index = stream_index
        self._usual_step = usual_step
        self._closely_packed = closely_packed
        self._damaged = False
        self._next_tick: int | None = None
        self.end_byte = self._room = 0

    def note_damage(self) -> None:
        """The demuxer found nothing at this place."""
        self._damaged = True

    def lost_before(self, packet: Packet) -> int:
        """How many packets of the stream are missing between this one and the last."""
        self._damaged |= packet.is_corrupt
        if self._closely_packed and packet.pos:
            self._damaged |= packet.pos > self.end_byte + self._room > 0
            self.end_byte = packet.pos + packet.size
            self._room = packet.size + OVERHEAD_BYTES
        if packet.stream_index != self._stream_index or packet.pts is None:
            return 0
        step = packet.duration or self._usual_step
        gap = packet.pts - self._next_tick if self._damaged and self._next_tick is not None else 0
        self._next_tick = max(packet.pts + step, self._next_tick or packet.pts)
        # Transport streams mark the packet before the hole.
        self._damaged = packet.is_corrupt
        return max(0, round(gap / step))
