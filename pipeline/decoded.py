"""What decoding a whole video found out, and what should have been there."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport:
    """The sum of one pass over a video."""

    num_frames: int
    """Slots of the grid that the video fills."""
    decoded_seconds: float
    """From the first decoded frame's start to the last one's end."""
    end_seconds: float
    """Where the last decoded frame ends on the caption clock."""
    packets: int
    """Packets of the video stream."""
    bad_packets: int
    """Of them, those that do not decode."""
    missing_fraction: float
    """How much of the length that the video stream declares is not covered by decoded frames."""
    synthetic_pts: bool
    """The file has no timestamps: frames were placed by the declared rate."""


@dataclass(slots=True)
class Lengths:
    """How long a file says that its pictures are, against how far its packets reach."""

    stream_seconds: float
    """The video stream's own declared length, 0: none."""
    file_seconds: float
    """The file's declared length, 0: none."""
    start_seconds: float
    """Where the file starts, on the clock of its timestamps."""
    late_seconds: float
    """How long after it the video stream starts."""
    reached_seconds: float = field(default=float("-inf"))
    """The latest end of any packet of any stream."""

    def reach(self, seconds: float) -> None:
        """Take note of a packet's end."""
        self.reached_seconds = max(self.reached_seconds, seconds)

    def missing_fraction(self, decoded_seconds: float) -> float:
        """The part of the declared length, in [0, 1], that `decoded_seconds` leaves open.

        A file's length counts only if no stream reaches it: then the file was cut. Otherwise some
        other stream, a long audio track, may be what lasts, and the pictures miss nothing.
        """
        expected = self.stream_seconds
        if not expected and self.file_seconds - self._reach_from_start() > 0.5:
            expected = self.file_seconds - self.late_seconds
        if expected <= 0:
            return 0.0
        return min(1.0, max(0.0, 1 - decoded_seconds / expected))

    def _reach_from_start(self) -> float:
        return max(0.0, self.reached_seconds - self.start_seconds)
