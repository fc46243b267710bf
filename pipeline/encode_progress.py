"""How far an encode job is: video-seconds done, what is left, and what holds it up.

One thread takes windows from the decoders, feeds the network and writes what is finished, so its
time tells the bottleneck: what it waits for or works at most of the time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.decode_limits import WaitingWindows
from pipeline.decoding import Event, Failed, Finished, Job, Started, Window

EVERY_SECONDS = 10.0
IDLE_SHARE = 0.5
"""Decoders that use less of a CPU than this wait for something else."""

ADVICE = {
    "decode": "decoding is the bottleneck: more run.encode.workers, or fewer frames, help",
    "reading": "reading the videos is the bottleneck (the disk, or CPUs that others use)",
    "model": "the network is the bottleneck: a GPU, more threads or (of float32) bfloat16 help",
    "disk": "writing features is the bottleneck: look at the disk under results/shards",
}

logger = logging.getLogger(__name__)


class GpuTally:
    """Which videos a GPU decoded, and why not the others; says so once, and at the end."""

    def __init__(self) -> None:
        self.num_decoded = 0
        self.faults: Counter[str] = Counter()

    def note(self, path: str, end: Finished) -> None:
        """Take in the end of a video."""
        self.num_decoded += end.on_gpu
        if not end.gpu_fault:
            return
        if not self.faults:
            logger.warning(
                "%s: NVDEC is not used (%s): the CPU decodes it, and others like it",
                *(path, end.gpu_fault),
            )
        self.faults[end.gpu_fault] += 1

    def text(self) -> str:
        """One line for the end."""
        parts = [f"NVDEC decoded {self.num_decoded} videos, the CPU {self.faults.total()}"]
        parts += [f"{count}: {fault}" for fault, count in self.faults.most_common(3)]
        return "; ".join(parts)


class Progress:
    """Follows the events of `jobs`, and logs at most every ten seconds."""

    def __init__(
        self,
        jobs: list[Job],
        stride_seconds: float,
        *,
        waiting: WaitingWindows | None = None,
        machine: Callable[[], str] = str,
    ):
        self.declared = {job.number: job.declared_seconds for job in jobs}
        self.stride_seconds = stride_seconds
        self.waiting, self.machine = waiting, machine
        self.seconds = dict.fromkeys(self.declared, 0.0)
        self.num_done = self.num_windows = 0
        self.spent = {"decode": 0.0, "model": 0.0, "disk": 0.0}
        self.busy_seconds = self.wall_seconds = 0.0
        self.began = self.spoke = time.monotonic()

    def follow(self, events: Iterator[Event]) -> Iterator[Event]:
        """Yield the same events; the time until each of them comes is the decoders'."""
        while True:
            with self.spending("decode"):
                event = next(events, None)
            if event is None:
                return
            yield event
            self.note(event)

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the time of the block as `decode`, `model` or `disk`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[what] += time.monotonic() - began

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
        if isinstance(event, Finished):
            self.busy_seconds += event.busy_seconds
            self.wall_seconds += event.wall_seconds
        if time.monotonic() - self.spoke >= EVERY_SECONDS:
            self.spoke = time.monotonic()
            logger.info("%s", self.text())

    def text(self) -> str:
        """One line: how much of all is done, how long the rest will take, what holds it up."""
        done, total = sum(self.seconds.values()), sum(self.declared.values())
        elapsed = time.monotonic() - self.began
        left = f"{(total - done) * elapsed / done:.0f} s left" if done else "no end in sight yet"
        parts = [f"{self.num_done}/{len(self.declared)} videos", f"{done:.0f}/{total:.0f} s", left]
        if self.bottleneck:
            parts.append(f"waiting for {self.bottleneck}")
        if self.waiting is not None:
            parts.append(f"{self.waiting.now}/{self.waiting.at_most} windows queued")
        return ", ".join(filter(None, [*parts, self.machine()]))

    @property
    def bottleneck(self) -> str:
        """What took most of the time; empty while nothing has."""
        what = max(self.spent, key=self.spent.__getitem__)
        if not self.spent[what]:
            return ""
        idle = self.wall_seconds and self.busy_seconds / self.wall_seconds < IDLE_SHARE
        return "reading" if what == "decode" and idle else what

    def verdict(self) -> str:
        """One line for the end: where the time went, and what would make it less."""
        total = max(sum(self.spent.values()), 1e-9)
        shares = ", ".join(f"{what} {spent / total:.0%}" for what, spent in self.spent.items())
        parts = [f"time went to {shares}", ADVICE.get(self.bottleneck, ""), self.machine()]
        return "; ".join(filter(None, parts))

    def speed(self, decoded_seconds: float) -> str:
        """One line for the end: clips a second, and how many times faster than playing."""
        elapsed = max(time.monotonic() - self.began, 1e-9)
        clips, times = self.num_windows / elapsed, decoded_seconds / elapsed
        return (
            f"{self.num_windows} clips, {decoded_seconds:.0f} s of video in {elapsed:.1f} s:"
            f" {clips:.2f} clips/s, {times:.1f} x real time"
        )
