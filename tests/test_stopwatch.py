"""Parts of a step: they exclude each other and add up, on every rank."""

from __future__ import annotations

import time

import pytest
import torch

from tests.ranks import run_ranks
from trainer.distributed import World
from trainer.stopwatch import Stopwatch


@pytest.fixture
def passes(monkeypatch):
    """A clock that stands still until it is told how many seconds pass."""
    now = [100.0]
    monkeypatch.setattr("trainer.stopwatch.time.perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_parts_are_exclusive_and_add_up(passes):
    watch = Stopwatch()
    watch.summary()
    with watch.part("loss"):
        passes(2)
        with watch.part("gather"):
            passes(3)
        passes(1)
    with watch.part("waiting"), watch.part("gather", within=("waiting",)):
        passes(5)
    passes(7)
    parts = watch.summary()
    assert {name: took for name, took in parts.items() if took} == {
        "loss": 3, "gather": 3, "waiting": 5, "other": 7
    }  # fmt: skip


def test_what_follows_the_last_gradient_is_the_exchange(passes):
    watch = Stopwatch()
    watch.summary()
    with watch.part("backward"):
        for _ in range(3):
            passes(1)
            watch.split("exchange")
        passes(5)
    parts = watch.summary()
    assert {name: took for name, took in parts.items() if took} == {"backward": 3, "exchange": 5}


def slow_rank(world: World, _) -> dict:
    """A step in which rank 1 computes longer; both then meet."""
    world.watch.summary()
    if world.rank == 1:
        time.sleep(0.3)
    with world.watch.part("waiting"):
        world.gather_integers([1])
    world.sum(torch.zeros(3))
    return world.watch.summary()


@pytest.mark.timeout(90)
def test_waiting_for_a_slow_rank_is_no_gathering(tmp_path):
    first, second = run_ranks(slow_rank, 2, None, tmp_path)
    assert first["waiting"] > 0.2
    assert second["waiting"] < first["waiting"]
    assert "gather" in first
