"""A process that answers requests, and that may die, hang or be killed without harm to ours.

libav can loop for ever without letting go of the interpreter, or crash, over a damaged video; so
whoever decodes videos of users' does it in such a process. A pipe of its own ends when the process
does, so a death is noticed at once; a queue between processes would keep its lock for ever.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

START_SECONDS = 300.0
"""That a process may take until it begins: a busy machine, a slow disk full of libraries."""


class DiedError(Exception):
    """The process has ended."""


class SilentError(Exception):
    """The process said nothing for too long."""


class Worker:
    """A process and our end of its pipe."""

    def __init__(self, answers: Callable[..., Iterable[Any]], *what: Any):
        """To each request the process gives the items of `answers(request, *what)`."""
        # Spawned: a fork would copy the locks of this process's other threads.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, answers, *what), daemon=True)
        self.begun = False
        """Whether it has loaded its libraries."""
        self.num_requests = 0
        self.process.start()
        theirs.close()

    def ask(self, request: Any) -> None:
        """Hand over a request; `next` gives the answers.

        Raises:
            DiedError
        """
        self.num_requests += 1
        try:
            self._pipe.send(request)
        except OSError:
            raise DiedError from None

    def next(self, seconds: float) -> Any:
        """The next answer, which may take `seconds` from when the process has begun.

        Raises:
            DiedError
            SilentError: none came, or the process did not even begin (`begun`).
        """
        try:
            if not self.begun:
                self._receive(START_SECONDS)
                self.begun = True
            return self._receive(seconds)
        except (EOFError, OSError):
            raise DiedError from None

    def _receive(self, seconds: float) -> Any:
        if not self._pipe.poll(max(seconds, 0.0)):
            raise SilentError
        return self._pipe.recv()

    def close(self, seconds: float = 5.0) -> int | None:
        """Let the process end within `seconds`, then end it by force; return its exit code."""
        self._pipe.close()
        self.process.join(timeout=seconds)
        self.process.kill()
        self.process.join()
        return self.process.exitcode


def _serve(pipe: Connection, answers: Callable[..., Iterable[Any]], *what: Any) -> None:
    """The process: requests in, answers out, until the other side closes the pipe."""
    # Ctrl-C reaches the whole group; the parent is to end this process, in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(None)
        while True:
            for answer in answers(pipe.recv(), *what):
                pipe.send(answer)
    except (EOFError, OSError):
        return
