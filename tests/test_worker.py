"""A process that answers: in order, again and again, until it dies, hangs or is closed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pipeline.worker import DiedError, SilentError, Worker


def counted(upto: int, step: int) -> Iterator[int]:
    """In the process: some numbers; -1 ends it."""
    if upto < 0:
        os._exit(7)
    yield from range(0, upto, step)


@pytest.mark.timeout(120)
def test_answers_come_in_order_and_a_closed_process_has_ended_well():
    worker = Worker(counted, 2)
    for _ in range(2):
        worker.ask(6)
        assert [worker.next(60) for _ in range(3)] == [0, 2, 4]
    assert (worker.num_requests, worker.begun, worker.close(60)) == (2, True, 0)


@pytest.mark.timeout(120)
def test_a_process_that_ends_has_died_and_tells_its_exit_code():
    worker = Worker(counted, 1)
    worker.ask(-1)
    with pytest.raises(DiedError):
        worker.next(60)
    assert worker.close() == 7
    with pytest.raises(DiedError):
        worker.ask(3)


@pytest.mark.timeout(120)
def test_a_process_that_hangs_is_silent_and_is_ended_by_force():
    worker = Worker(counted, 1)
    worker.ask(1)
    assert worker.next(60) == 0
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.ask(1)
    with pytest.raises(SilentError):
        worker.next(0.1)
    assert (worker.begun, worker.close(0)) == (True, -signal.SIGKILL)


@pytest.mark.timeout(120)
def test_the_time_to_begin_is_not_that_of_the_answer(monkeypatch):
    worker = Worker(counted, 1)
    worker.ask(1)
    monkeypatch.setattr("pipeline.worker.START_SECONDS", 0.0)
    with pytest.raises(SilentError):
        worker.next(60)
    assert not worker.begun
    worker.close(0)
