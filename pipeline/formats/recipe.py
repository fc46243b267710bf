"""How features were made: the times and geometry of every vector, and the network behind it.

A recipe has an *identity*, which decides whether features may be re-used or mixed in one training
set, and a *provenance* (library versions, device, batch), which is recorded and never compared.

Vector i looks at the frames i·stride .. i·stride + frames - 1 of a grid of `frame_rate` frames a
second that starts at the caption clock's zero.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from pipeline.formats.files import digest_of

TAILS = ("drop", "zero", "repeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Where in time the encoder looks."""

    frame_rate: float
    """Grid frames a second."""
    frames: int
    """Grid frames that one vector sees."""
    stride_seconds: float
    """Seconds from one vector's start to the next."""
    tail: str
    """What fills a last window that the video does not: `repeat` its last frame, `zero` (black), or
    `drop` the window (a video shorter than one window is filled by repeating all the same)."""

    def __post_init__(self) -> None:
        if self.frame_rate <= 0 or self.frames < 1 or self.stride_seconds <= 0:
            raise ValueError(f"sampling needs positive numbers, found {self}")
        stride_frames = self.stride_seconds * self.frame_rate
        if abs(stride_frames - round(stride_frames)) > 1e-6 or round(stride_frames) < 1:
            raise ValueError(
                f"stride_seconds {self.stride_seconds} × frame_rate {self.frame_rate} is"
                f" {stride_frames:g} frames; it must be a whole number of at least 1"
            )
        if self.tail not in TAILS:
            raise ValueError(f"tail {self.tail!r}, allowed: {', '.join(TAILS)}")
        # 8 and 8.0 are the same rate, and would be two identities.
        for name in ("frame_rate", "stride_seconds"):
            value = getattr(self, name)
            object.__setattr__(self, name, int(value) if value == int(value) else value)

    @property
    def stride_frames(self) -> int:
        """Grid frames from one vector's start to the next."""
        return round(self.stride_seconds * self.frame_rate)

    def num_vectors(self, num_frames: int) -> int:
        """How many vectors a video of `num_frames` grid frames gets: 0 only for 0 frames."""
        if num_frames <= 0:
            return 0
        over = num_frames - self.frames
        steps = (
            over // self.stride_frames if self.tail == "drop" else -(-over // self.stride_frames)
        )
        # With gaps between windows (stride > frames) the last one must still start in the video.
        starts_inside = -(-num_frames // self.stride_frames)
        return max(1, min(steps + 1, starts_inside))

    def valid_frames(self, num_frames: int) -> np.ndarray:
        """Frames of each window that are the video's own, not filled: [T] int64."""
        starts = np.arange(self.num_vectors(num_frames)) * self.stride_frames
        return np.minimum(self.frames, num_frames - starts)

    def spans(self, num_frames: int) -> tuple[np.ndarray, np.ndarray]:
        """Start and end seconds of each vector's own frames: two [T] float64 arrays."""
        starts = np.arange(self.num_vectors(num_frames)) * self.stride_frames
        stops = starts + self.valid_frames(num_frames)
        return starts / self.frame_rate, stops / self.frame_rate


PRESETS = {
    "howto100m-1s": Sampling(frame_rate=16, frames=16, stride_seconds=1, tail="repeat"),
    "milnce-3.2s": Sampling(frame_rate=10, frames=32, stride_seconds=3.2, tail="repeat"),
    "videoclip": Sampling(frame_rate=30, frames=30, stride_seconds=1, tail="zero"),
    "half-hertz": Sampling(frame_rate=8, frames=16, stride_seconds=2, tail="repeat"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The identity of a set of features."""

    encoder: str
    """The encoder's name, or its `package.module:factory`."""
    weights_sha256: str
    """Of the weights file, or of the seeded random weights."""
    output: str
    """Which of the network's outputs, `mixed_5c` or `embedding` for S3D."""
    feature_dim: int
    frame_size: int
    """Pixels on a side of the square picture that the network sees."""
    sampling: Sampling
    precision: str
    feature_version: int

    def __post_init__(self) -> None:
        if self.feature_dim < 1 or self.frame_size < 1:
            raise ValueError(f"a recipe needs positive sizes, found {self}")

    def to_dict(self) -> dict:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> Recipe:
        """From `to_dict`'s values; others raise `KeyError`, `TypeError` or `ValueError`."""
        return cls(**{**values, "sampling": Sampling(**values["sampling"])})

    @property
    def identity(self) -> str:
        """A digest that is equal exactly when features may be mixed."""
        return digest_of(self.to_dict())
