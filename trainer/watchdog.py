"""For what takes too long: a step, whose threads are named in the log, and a start, which ends.

A watchdog's clock and the writing are Python's own faulthandler, a thread in C: it works also where
the main thread hangs in an exchange or in native code that never gives the interpreter back.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.cli import tell_launcher

logger = logging.getLogger(__name__)


@contextmanager
def give_up_after(seconds: float, line: str) -> Iterator[None]:
    """End this process with `line` where the work inside takes longer, whatever it waits for.

    For native code that waits without a timeout, as torch does at a port where no rank listens but
    something else that is silent.
    """
    timer = threading.Timer(seconds, _give_up, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(line: str) -> None:
    logger.error("%s", line)
    tell_launcher(line)
    os._exit(1)


class Watchdog:
    """Dumps the stacks of all threads to stderr unless `beat` comes in time."""

    def __init__(self, rank: int, seconds: float) -> None:
        """`seconds` 0: never."""
        self._rank, self._seconds = rank, seconds
        self._since = time.monotonic()

    def __enter__(self) -> Watchdog:
        self._start()
        return self

    def beat(self) -> None:
        """A step ended: start the clock anew, and say what a dump above was."""
        took = time.monotonic() - self._since
        if self._seconds and took > self._seconds:
            logger.warning(
                "a step of rank %d took %.1f s, run.train.stall_seconds is %g: the stacks of its"
                " threads stand above. Look at those that wait for data, files or other ranks",
                self._rank, took, self._seconds,
            )  # fmt: skip
        self._start()

    def _start(self) -> None:
        self._since = time.monotonic()
        if self._seconds and sys.__stderr__ is not None:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.dump_traceback_later(self._seconds, file=sys.__stderr__)

    def __exit__(self, *_: object) -> None:
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
