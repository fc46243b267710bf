"""What decoding a whole video found out, and what should have been there."""

from __future__ import annotations

from dataclasses import dataclass

UNSEEN_SECONDS = 1.0
"""A stream whose packets begin this much later than declared was not seen when that was said."""
CUT_SECONDS = 0.5
"""A file whose streams end this much earlier than declared was cut, or its last picture stands."""


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
    """Of them, those that do not decode, or that a damaged place has swallowed."""
    missing_fraction: float
    """How much of the time up to where the video stream should end no decoded frame covers."""
    synthetic_pts: bool
    """The file has no timestamps: frames were placed by the declared rate."""


@dataclass(slots=True, kw_only=True)
class Lengths:
    """How long a file says that its pictures are, against how far its packets reach.

    Moments are those of the file's own timestamps, in seconds.
    """

    stream_seconds: float
    """The video stream's own declared length, 0: none."""
    stream_start: float
    """Where it is declared to start. libav fills in the file's start and length for a stream of
    which it saw nothing when it opened the file."""
    tagged_end: float
    """Where Matroska's tags say that it ends, 0: nowhere."""
    file_seconds: float
    """The file's declared length, 0: none..."""
    zero: float
    """...and from where it counts."""
    start: float
    """The zero of the caption clock."""
    first: float | None = None
    """Where the stream's first packet starts."""
    discarded_seconds: float = 0.0
    """Of its packets that an edit list leaves out."""
    reached: float = float("-inf")
    """The latest end of any packet of any stream."""

    def missing_fraction(self, decoded_seconds: float) -> float:
        """The part, in [0, 1], of the time up to where the stream should end that no frame covers.

        Before a late start nothing is missing: its first frame stands there.
        """
        first = self.stream_start if self.first is None else self.first
        expected = self._expected(first)
        missing = expected - decoded_seconds
        return missing / (max(0.0, first - self.start) + expected) if missing > 0 else 0.0

    def _expected(self, first: float) -> float:
        """The length that the stream should have; 0: nothing is known of it.

        A file's length counts only if no stream reaches it: then the file was cut. Otherwise some
        other stream, a long audio track, may be what lasts, and the pictures miss nothing.
        """
        if self.tagged_end:
            return self.tagged_end - first
        if self.stream_seconds and first - self.stream_start < UNSEEN_SECONDS:
            # Of MP4 it is the length of all pictures or the end of those that are shown, whichever
            # is smaller.
            return self.stream_seconds - min(max(0.0, first), self.discarded_seconds)
        if self.file_seconds - max(0.0, self.reached - self.zero) > CUT_SECONDS:
            return self.file_seconds - max(0.0, first - self.zero)
        return 0.0
