"""Who heeds SIGTERM and SIGUSR1: a rank stops in good order, its loader processes outlive it.

Slurm, torchrun and Ctrl-C signal whole groups of processes. A loader that died of that would take
its rank with it before the rank could save.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
STOPPED = 143
"""Exit status of a run that a signal ended after it saved: 128 + SIGTERM."""
STOP_FILE = "BAGPIPE_STOP_FILE"
"""Environment variable: the file that tells the launcher of a stop in good order."""
LOADER_SECONDS = 120
"""How long a loader process goes on after a SIGTERM of its own."""


class StopFlag:
    """Raised by SIGTERM or SIGUSR1; the handler does nothing else, so it may be called twice.

    After its end the handlers of before are back.
    """

    def __init__(self) -> None:
        self.raised = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._raise)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _raise(self, *_: object) -> None:
        self.raised = True


def stopped_status() -> int:
    """What a rank ends with once it has saved because a signal asked for it.

    143, but 0 below the launcher, which is told by a file: torchrun would take 143 for a fault and
    start the ranks again in place, or kill those that are still leaving. Where nodes come and go
    the launcher names no file: there they are to start again.
    """
    path = os.environ.get(STOP_FILE)
    if not path:
        return STOPPED
    with suppress(OSError):  # another node than the launcher's, whose own ranks write it
        Path(path).touch()
    return 0


@contextmanager
def sparing_children() -> Iterator[None]:
    """Processes that are started inside get no SIGTERM or SIGUSR1 before `start_loader`.

    Those of this process come through afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_loader(_number: int) -> None:
    """Have this loader process go on when its group is signalled.

    It ends with its rank; the alarm is for one that hangs while its rank waits for its end.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(LOADER_SECONDS))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
