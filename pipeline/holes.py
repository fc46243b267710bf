"""Packets that a damaged place of a file has swallowed: the demuxer goes on behind it, silently.

In time such a hole is a picture that stands still, and screen recordings are full of those. So a
gap in time counts only where the bytes are damaged too.
"""

from __future__ import annotations

from typing import Any, Protocol

OVERHEAD_BYTES = {"matroska,webm": 4096, "flv": 4096, "mpegts": 65536}
"""By the demuxer: what may lie between two packets of a sound file, beside a picture's alpha, which
is smaller than the picture. Transport streams are stuffed."""
NEAR_PACKETS = 3
"""Of the stream may still come from before a damaged place when the demuxer is already behind it.
"""


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

    def __init__(self, stream_index: int, *, usual_step: int, demuxer: str):
        """`usual_step` ticks are a packet's duration when it has none itself."""
        self._stream_index = stream_index
        self._usual_step = usual_step
        self._overhead = OVERHEAD_BYTES.get(demuxer)
        self._suspect = 0
        """So many of the stream's next packets may come from behind a damaged place."""
        self._next_tick: int | None = None
        self._clear_until = 0
        self.end_byte = 0
        """Of the packets so far, where they are packed so closely that holes show."""

    def note_damage(self) -> None:
        """The demuxer found nothing at this place."""
        self._suspect = NEAR_PACKETS

    def lost_before(self, packet: Packet) -> int:
        """How many packets of the stream are missing between this one and the last."""
        if packet.is_corrupt or self._is_far(packet):
            self.note_damage()
        if packet.stream_index != self._stream_index or packet.pts is None:
            return 0
        step = packet.duration or self._usual_step
        expected = packet.pts if self._next_tick is None else self._next_tick
        lost = max(0, round((packet.pts - expected) / step)) if self._suspect else 0
        self._next_tick = max(packet.pts + step, expected)
        self._suspect = max(0, self._suspect - 1)
        return lost

    def _is_far(self, packet: Packet) -> bool:
        """Whether bytes lie between a packet and the one before it that belong to neither."""
        if self._overhead is None or not packet.pos:
            return False
        far = 0 < self._clear_until < packet.pos
        end = packet.pos + packet.size
        self.end_byte = max(end, self.end_byte)
        self._clear_until = max(end + packet.size + self._overhead, self._clear_until)
        return far
