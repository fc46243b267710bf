"""What decoding may use up: time for a video, videos for a process, windows that wait."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.decoding import Event, Failed, Finished, Job
from pipeline.formats.manifest import Reason

LONGEST_BUDGET = 7 * 24 * 3600.0
"""A declared length may be any number, and the system can wait no longer than 24 days at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a decoding process may use up."""

    video_seconds: float
    """Wall time for any video..."""
    factor: float
    """...and for each second that it declares to last."""
    videos_per_worker: int
    """A process is replaced after so many videos, and what it leaked is gone."""

    def __post_init__(self) -> None:
        positive = self.video_seconds > 0 and self.factor >= 0 and self.videos_per_worker >= 1
        if not (positive and math.isfinite(self.video_seconds) and math.isfinite(self.factor)):
            raise ValueError(f"limits of decoding must be positive and finite, found {self}")

    def budget(self, job: Job) -> float:
        """Seconds that a video may take."""
        seconds = self.video_seconds + self.factor * max(0.0, job.declared_seconds)
        return min(seconds, LONGEST_BUDGET)


USUAL_LIMITS = Limits(video_seconds=120.0, factor=2.0, videos_per_worker=200)
"""Those of config/config.yaml: half of real time at the slowest, which 8K reaches on one core."""


def over_budget(job: Job, budget: float) -> Failed:
    """The end of a video whose decoding took too long."""
    message = (
        f"decoding took longer than its budget of {budget:.0f} s"
        " (run.encode.video_timeout_seconds and video_timeout_factor)"
    )
    return Failed(job.number, Reason.TIMEOUT, message)


def within_budget(job: Job, events: Iterator[Event], budget: float) -> Iterator[Event]:
    """Yield a video's events; it is given up at the first one behind the budget of seconds.

    Only the time until an event comes counts, not what is done with it. An event that never comes
    cannot be given up: that takes another process (`decode_pool`).
    """
    spent = 0.0
    while True:
        began = time.monotonic()
        event = next(events, None)
        spent += time.monotonic() - began
        if event is None:
            return
        if spent > budget and not isinstance(event, Finished | Failed):
            yield over_budget(job, budget)
            return
        yield event


class WaitingWindows:
    """How many windows may wait for the network, and how many did when it last took one."""

    def __init__(self, at_most: int):
        self.at_most, self.now = at_most, 0
