"""Decode many videos at once, in processes of their own that may die without harm.

Each process has a keeper, a thread here that hands it one video at a time over a pipe of their own
and passes on what comes back. A pipe ends when its process does, so a killed process is noticed at
once; a queue between processes would keep its lock for ever. What waits is bounded: keepers wait
when the queue is full, and their processes wait for them.

A keeper also keeps its video's time budget, by killing the process: libav can loop for ever without
letting go of the interpreter, so nothing inside the process could. Only time spent waiting for the
process counts, so a slow network costs no video its place.
"""

from __future__ import annotations

import logging
import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

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

TRIES = 2
"""Of a video whose process dies."""
PATIENCE_SECONDS = 0.2
"""How often waiting threads look whether they should stop."""
START_SECONDS = 300.0
"""That a process may take until its first event: a busy machine, a slow disk full of libraries."""

What = tuple[Sampling, Geometry, int | None]
"""How all videos of a job are decoded: the last is the GPU, if one does it."""

logger = logging.getLogger(__name__)


class _OutOfTime(Exception):
    """A process said nothing for too long."""

    def __init__(self, failed: Failed):
        super().__init__()
        self.failed = failed
        """What became of its video."""


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


def _serve(connection: Connection, *what: Any) -> None:
    """A decoding process: jobs in, events out, until the other side closes the pipe."""
    # Ctrl-C reaches the whole group; the parent is to end this process, in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            for event in decode_video(connection.recv(), *what):
                connection.send(event)
    except (EOFError, OSError):
        return


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
        self.processes: list[multiprocessing.process.BaseProcess] = []

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
            for process in self.processes:
                process.kill()

    def keep(self) -> None:
        """One keeper: see every job that it takes to its end."""
        worker = None
        try:
            while not self.stopping.is_set():
                job = self.jobs.get_nowait()
                worker = self._see_through(job, worker)
                if worker is not None and worker.num_videos >= self.limits.videos_per_worker:
                    worker.close()
                    worker = None
        except queue.Empty:
            pass
        finally:
            if worker is not None:
                worker.close()
            self._pass_on(None)

    def _see_through(self, job: Job, worker: _Worker | None) -> _Worker | None:
        """Get one video decoded; return the process for the next one, if it lives."""
        exit_code = None
        for attempt in range(1, TRIES + 1):
            worker = worker or self._start()
            try:
                if worker is None or self._relay(job, worker):
                    return worker
            except _OutOfTime as late:
                assert worker is not None
                worker.process.kill()
                worker.close()
                self._pass_on(late.failed)
                return None
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

    def _start(self) -> _Worker | None:
        with self.lock:
            if self.stopping.is_set():
                return None
            worker = _Worker(*self.what)
            self.processes.append(worker.process)
            return worker

    def _relay(self, job: Job, worker: _Worker) -> bool:
        """Pass on a video's events; False when the process died over it.

        Raises:
            _OutOfTime: the video's budget is spent, or the process never began.
        """
        budget = self.limits.budget(job)
        left, late = START_SECONDS, _never_began(job)
        try:
            worker.connection.send(job)
            while True:
                event, waited = _next_event(worker.connection, left)
                if event is None:
                    raise _OutOfTime(late)
                left -= waited
                if isinstance(event, Started):
                    left, late = budget, over_budget(job, budget)
                self._pass_on(event)
                if isinstance(event, Finished | Failed):
                    worker.num_videos += 1
                    return True
        except (EOFError, OSError):
            return False

    def _pass_on(self, event: Event | None) -> None:
        while not self.stopping.is_set():
            try:
                return self.waiting.put(event, timeout=PATIENCE_SECONDS)
            except queue.Full:
                continue
        return None


def _never_began(job: Job) -> Failed:
    message = (
        f"its decoding process did not begin within {START_SECONDS:.0f} s: the machine or its disk"
        " was too busy, and nothing is known of the video"
    )
    return Failed(job.number, Reason.TIMEOUT, message)


def _next_event(connection: Connection, left: float) -> tuple[Event | None, float]:
    """The next event, or None after `left` seconds; and how long it was waited for."""
    began = time.monotonic()
    event = connection.recv() if connection.poll(max(left, 0.0)) else None
    return event, time.monotonic() - began


class _Worker:
    """A decoding process and our end of its pipe."""

    def __init__(self, *what: object):
        # Spawned: a fork would copy the locks of this process's other threads.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *what), daemon=True)
        self.num_videos = 0
        self.process.start()
        theirs.close()

    def close(self) -> int | None:
        """Let the process end, by force if need be; return its exit code."""
        self.connection.close()
        self.process.join(timeout=5)
        self.process.kill()
        self.process.join()
        return self.process.exitcode
