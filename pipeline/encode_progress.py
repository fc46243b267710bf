"""How far an encode job is: video-seconds done, what is left, and the speed at the end."""

from __future__ import annotations

import logging
import time

from pipeline.decoding import Event, Failed, Finished, Job, Started, Window

EVERY_SECONDS = 10.0

log = logging.getLogger(__name__)


class Progress:
    """Follows the events of `jobs`, and logs at most every ten seconds."""

    def __init__(self, jobs: list[Job], stride_seconds: float):
        self.declared = {job.number: job.declared_seconds for job in jobs}
        self.stride_seconds = stride_seconds
        self.seconds = dict.fromkeys(self.declared, 0.0)
        self.num_done = self.num_windows = 0
        self.began = self.spoke = time.monotonic()

    def note(self, event: Event) -> None:
        """Take an event in; a video counts as far as it is decoded."""
        if isinstance(event, Started):
            self.seconds[event.number] = 0.0
        elif isinstance(event, Window):
            self.num_windows += 1
            seconds = self.seconds[event.number] + self.stride_seconds
            self.seconds[event.number] = min(seconds, self.declared[event.number])
        elif isinstance(event, Finished | Failed):
            self.num_done += 1
            self.seconds[event.number] = self.declared[event.number]
        if time.monotonic() - self.spoke >= EVERY_SECONDS:
            self.spoke = time.monotonic()
            log.info("%s", self.text())

    def text(self) -> str:
        """One line: how much of all is done, and how long the rest will take at this speed."""
        done, total = sum(self.seconds.values()), sum(self.declared.values())
        elapsed = time.monotonic() - self.began
        left = f"{(total - done) * elapsed / done:.0f} s left" if done else "no end in sight yet"
        return f"{self.num_done}/{len(self.declared)} videos, {done:.0f}/{total:.0f} s, {left}"

    def speed(self, decoded_seconds: float) -> str:
        """One line for the end: clips a second, and how many times faster than playing."""
        elapsed = max(time.monotonic() - self.began, 1e-9)
        clips, times = self.num_windows / elapsed, decoded_seconds / elapsed
        return (
            f"{self.num_windows} clips, {decoded_seconds:.0f} s of video in {elapsed:.1f} s:"
            f" {clips:.2f} clips/s, {times:.1f} x real time"
        )
