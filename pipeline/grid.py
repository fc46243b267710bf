"""Where frames lie in time: the grid of a sampling, and the windows cut from it.

Slot n of the grid stands for n / frame_rate seconds of the caption clock. A frame is placed as the
fps filter of the ffmpeg command line does (round=near): into the slot nearest to its time, where it
stays until a frame with a later slot comes.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from typing import NoReturn

import numpy as np

from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import Sampling

MAX_STEP_BACK_SECONDS = 0.5
"""Broken headers shuffle neighbours; a larger step back is a second recording in the same file."""
MAX_GAP_SECONDS = 3600
"""A picture that stands longer is taken for a wild timestamp, which would fill a disk with it."""


class Clock:
    """The caption clock of one stream."""

    def __init__(self, time_base: Fraction, *, start_seconds: Fraction, frame_rate: float):
        """`time_base`: seconds of a tick; the container starts at `start_seconds` of the ticks'."""
        self.time_base = time_base
        self.zero = round_half_away(*(start_seconds / time_base).as_integer_ratio())
        rate = Fraction(frame_rate).limit_denominator(1_000_000)
        self._slots, self._ticks = (time_base * rate).as_integer_ratio()

    def seconds(self, ticks: int) -> float:
        """The time of a timestamp."""
        return float((ticks - self.zero) * self.time_base)

    def ticks(self, seconds: float) -> int:
        """How many whole ticks fit into a span."""
        return int(seconds / self.time_base)

    def slot(self, ticks: int) -> int:
        """The slot nearest to a timestamp, negative before the container's start."""
        return round_half_away((ticks - self.zero) * self._slots, self._ticks)


def round_half_away(numerator: int, denominator: int) -> int:
    """The whole number nearest to a fraction, halves away from zero, as libav rounds.

    In whole numbers, because it is asked for every frame of every video.
    """
    nearest = (2 * abs(numerator) + denominator) // (2 * denominator)
    return nearest if numerator >= 0 else -nearest


class FrameTimes:
    """Places the frames of one stream, in the order in which they are decoded."""

    def __init__(self, clock: Clock, *, usual_step: int):
        """`usual_step` ticks are the last frame's duration when nothing else tells it."""
        self.clock = clock
        self._longest_gap = clock.ticks(MAX_GAP_SECONDS)
        self._longest_step_back = clock.ticks(MAX_STEP_BACK_SECONDS)
        self.num_frames = 0
        """Slots that have been given to frames so far; all of them after `finish`."""
        self.first: int | None = None
        """The first frame's tick, None when no frame had a timestamp."""
        self._last = self._latest = self._lead = 0
        self.usual_step = self._duration = self._step = usual_step
        self._stamps = _Stamps()

    def place(self, pts: int | None, dts: int | None, duration: int | None) -> range | None:
        """Take a frame's timestamps; return the slots that show the frame *before* it.

        None: it has no timestamp, nor has any frame before it. Later ones without a timestamp
        follow upon the frame before them.

        Raises:
            VideoFault: DISCONTINUOUS.
        """
        tick = self._stamps.best(pts, dts)
        if tick is None:
            if self.first is None:
                return None
            tick = self._last + self._duration
        if self.first is None:
            self.first = self._latest = self._last = tick
            self._check_gap(self.clock.zero, tick)
            # The slots before a late start show what the first slot of the video shows.
            self._lead = max(0, self.clock.slot(tick))
            slots = range(0)
        else:
            self._check_gap(self._latest, tick)
            self._check_order(tick)
            slots = self._fill_to(self.clock.slot(tick))
            self._step = tick - self._last if tick > self._last else self._step
        self._last, self._latest = tick, max(tick, self._latest)
        self._duration = duration or self._step
        return slots

    def finish(self, until: int | None = None) -> range:
        """The slots that show the last frame: a video of one frame has at least one slot.

        `until`: the tick up to which it stands, if that is later than where it would end by itself.
        """
        if until is not None:
            self._duration = max(self._duration, until - self._latest)
        self._duration = max(0, min(self._duration, self._longest_gap))
        self._lead = 0
        return self._fill_to(max(self.clock.slot(self._last + self._duration), 1))

    @property
    def decoded_seconds(self) -> float:
        """From the first frame's start to the last one's end."""
        if self.first is None:
            return 0.0
        return float((self._latest + self._duration - self.first) * self.clock.time_base)

    @property
    def end_seconds(self) -> float:
        """Where the last frame ends on the caption clock: later than its length by a late start."""
        if self.first is None:
            return 0.0
        return max(0.0, self.clock.seconds(self._latest + self._duration))

    def _fill_to(self, stop: int) -> range:
        if stop <= self._lead:
            return range(0)
        slots = range(self.num_frames, max(stop, self.num_frames))
        self.num_frames = slots.stop
        return slots

    def _check_order(self, tick: int) -> None:
        if self._latest - tick > self._longest_step_back:
            self._jump("back", self._latest, tick)

    def _check_gap(self, before: int, tick: int) -> None:
        if tick - before > self._longest_gap:
            self._jump("ahead", before, tick)

    def _jump(self, where: str, before: int, after: int) -> NoReturn:
        start, stop = self.clock.seconds(before), self.clock.seconds(after)
        jump = f"timestamps jump {where} from {start:.2f} s to {stop:.2f} s"
        raise VideoFault(Reason.DISCONTINUOUS, jump)


class _Stamps:
    """Chooses between the two timestamps of a frame as libav's `best_effort_timestamp` does.

    Old containers (AVI) store the order of decoding alone, and what stands in pts is a guess that
    may run backwards; the kind that broke its order less often is believed.
    """

    def __init__(self) -> None:
        self._last_pts = self._last_dts = -(2**63)
        self._faulty_pts = self._faulty_dts = 0

    def best(self, pts: int | None, dts: int | None) -> int | None:
        if dts is not None:
            self._faulty_dts += dts <= self._last_dts
            self._last_dts = dts
        elif pts is not None:
            self._last_dts = pts
        if pts is not None:
            self._faulty_pts += pts <= self._last_pts
            self._last_pts = pts
        elif dts is not None:
            self._last_pts = dts
        trusted = self._faulty_pts <= self._faulty_dts or dts is None
        return pts if trusted and pts is not None else dts


class WindowBuffer:
    """Cuts windows out of a row of pictures; it remembers one window of them.

    Pictures are uint8 [size, size, 3] arrays, windows [frames, size, size, 3] copies of them.
    """

    def __init__(self, sampling: Sampling):
        self._sampling = sampling
        self._pictures: deque[np.ndarray] = deque(maxlen=sampling.frames)

    def needs(self, slot: int) -> bool:
        """Whether any window looks at `slot`: strides may be longer than windows."""
        return slot % self._sampling.stride_frames < self._sampling.frames

    def push(self, slot: int, picture: np.ndarray) -> np.ndarray | None:
        """Take the next slot that is needed; return the window that it completes, if any."""
        self._pictures.append(picture)
        start = slot - self._sampling.frames + 1
        complete = start >= 0 and start % self._sampling.stride_frames == 0
        return np.stack(self._pictures) if complete else None

    def finish(self, num_frames: int) -> np.ndarray | None:
        """The last window of a video of `num_frames` slots, filled, if none completed it."""
        frames = self._sampling.frames
        start = (self._sampling.num_vectors(num_frames) - 1) * self._sampling.stride_frames
        valid = num_frames - start
        if num_frames < 1 or valid >= frames:
            return None
        pictures = list(self._pictures)[-valid:]
        last = pictures[-1]
        fill = np.zeros_like(last) if self._sampling.tail == "zero" else last
        return np.stack(pictures + [fill] * (frames - valid))
