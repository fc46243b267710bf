"""Decode many videos at once, in processes of their own that may die without harm.

Each process has a keeper, a thread here that hands it one video at a time and passes on what comes
back. What waits is bounded: keepers wait when the queue is full, and their processes wait for them.

A keeper also keeps its video's time budget, by killing the process. Only time spent waiting for the
process counts, so a slow network costs no video its place.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from pipeline.decode_limits import (
    USUAL_LIMITS,
    Limits,
    WaitingWindows,
    over_budget,
    within_budget,
)
from pipeline.decoding import Event, Failed, Finished, Job, Started, decode_video
from pipeline.formats.manifest import Reason
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry
from pipeline.worker import START_SECONDS, DiedError, SilentError, Worker

TRIES = 2
"""Of a video whose process dies."""
PATIENCE_SECONDS = 0.2
"""How often waiting threads look whether they should stop."""

What = tuple[Sampling, Geometry, int | None]
"""How all videos of a job are decoded: the last is the GPU, if one does it."""

logger = logging.getLogger(__name__)


def decode_all(
    jobs: list[Job],
    sampling: Sampling,
    geometry: Geometry,
    *,
    workers: int,
    waiting_windows: int | WaitingWindows,
    limits: Limits = USUAL_LIMITS,
    gpu: int | None = None,
) -> Generator[Event, None, None]:
    """Yield the events of every job, those of one video in order, of several interleaved.

    `workers` processes decode, and at most about `waiting_windows` windows wait. With 0 workers
    this process decodes: it gives up a video that is over its budget when the next window comes,
    and hangs with one that hangs. When the iterator is closed, also by an exception, the processes
    are killed. With `gpu`, that GPU's decoder is used.
    """
    what: What = (sampling, geometry, gpu)
    if not workers:
        for job in jobs:
            with closing(decode_video(job, *what)) as events:
                yield from within_budget(job, events, limits.budget(job))
        return
    if isinstance(waiting_windows, int):
        waiting_windows = WaitingWindows(waiting_windows)
    pool = _Pool(jobs, what, waiting_windows, limits)
    with ThreadPoolExecutor(workers) as threads:
        try:
            keepers = [threads.submit(pool.keep) for _ in range(min(workers, len(jobs)))]
            yield from pool.events(len(keepers))
            for keeper in keepers:
                keeper.result()
        finally:
            pool.stop()


class _Pool:
    """What the keepers share."""

    def __init__(
        self,
        jobs: list[Job],
        what: What,
        depth: WaitingWindows,
        limits: Limits,
    ):
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            self.jobs.put(job)
        self.what, self.depth, self.limits = what, depth, limits
        self.waiting: queue.Queue[Event | None] = queue.Queue(depth.at_most)
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.workers: list[Worker] = []

    def events(self, num_keepers: int) -> Iterator[Event]:
        """Yield what the keepers pass on until the last of them has ended."""
        while num_keepers:
            self.depth.now = self.waiting.qsize()
            event = self.waiting.get()
            if event is None:
                num_keepers -= 1
            else:
                yield event

    def stop(self) -> None:
        """Kill the processes; their keepers then come to an end."""
        with self.lock:
            self.stopping.set()
            for worker in self.workers:
                worker.process.kill()

    def keep(self) -> None:
        """One keeper: see every job that it takes to its end."""
        worker = None
        try:
            while not self.stopping.is_set():
                job = self.jobs.get_nowait()
                worker = self._see_through(job, worker)
                if worker is not None and worker.num_requests >= self.limits.videos_per_worker:
                    worker.close()
                    worker = None
        except queue.Empty:
            pass
        finally:
            if worker is not None:
                worker.close()
            self._pass_on(None)

    def _see_through(self, job: Job, worker: Worker | None) -> Worker | None:
        """Get one video decoded; return the process for the next one, if it lives."""
        exit_code = None
        for attempt in range(1, TRIES + 1):
            worker = worker or self._start()
            if worker is None:
                return None
            try:
                self._relay(job, worker)
                return worker
            except SilentError:
                worker.close(seconds=0)
                self._pass_on(self._late(job, worker))
                return None
            except DiedError:
                exit_code = worker.close()
                worker = None
            if self.stopping.is_set():
                return None
            logger.warning(
                "decoding %s ended its process (exit code %s), try %d of %d",
                *(job.path, exit_code, attempt, TRIES),
            )
            job = replace(job, on_cpu=True)
        message = f"its decoding process died {TRIES} times (exit code {exit_code})"
        self._pass_on(Failed(job.number, Reason.CRASHED, message))
        return None

    def _start(self) -> Worker | None:
        with self.lock:
            if self.stopping.is_set():
                return None
            worker = Worker(decode_video, *self.what)
            self.workers.append(worker)
            return worker

    def _relay(self, job: Job, worker: Worker) -> None:
        """Pass on a video's events.

        Raises:
            DiedError: the process died over it.
            SilentError: its budget is spent, or the process never began.
        """
        left = budget = self.limits.budget(job)
        worker.ask(job)
        while True:
            began = time.monotonic()
            event = worker.next(left)
            left = budget if isinstance(event, Started) else left - (time.monotonic() - began)
            self._pass_on(event)
            if isinstance(event, Finished | Failed):
                return

    def _late(self, job: Job, worker: Worker) -> Failed:
        if worker.begun:
            return over_budget(job, self.limits.budget(job))
        message = (
            f"its decoding process did not begin within {START_SECONDS:.0f} s: the machine or its"
            " disk was too busy, and nothing is known of the video"
        )
        return Failed(job.number, Reason.TIMEOUT, message)

    def _pass_on(self, event: Event | None) -> None:
        while not self.stopping.is_set():
            try:
                return self.waiting.put(event, timeout=PATIENCE_SECONDS)
            except queue.Full:
                continue
        return None
