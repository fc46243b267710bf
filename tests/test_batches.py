"""Batches: always full, across videos, and smaller where memory ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.encoders import batch_size
from pipeline.encoders.batch_size import held_size, probed_size
from pipeline.encoders.batches import WindowBatch
from pipeline.formats.files import read_json

SHAPE = (2, 2, 2, 3)


class Counting:
    """Stands in for an encoder: a window's mean, and how large the batches were."""

    device = torch.device("cpu")

    def __init__(self, room: int = 10**9):
        self.sizes, self.room = [], room

    def __call__(self, windows_BTHWC):
        self.sizes.append(len(windows_BTHWC))
        if len(windows_BTHWC) > self.room:
            raise torch.OutOfMemoryError("no room")
        return windows_BTHWC.float().mean(dim=(1, 2, 3, 4))[:, None]


def add_all(batch, takers, values):
    return [batch.add(np.full(SHAPE, v, np.uint8), takers[v % len(takers)]) for v in values]


def values_of(takers):
    return [[float(row[0]) for row in taker] for taker in takers]


def test_batches_run_across_takers_and_are_always_full():
    encoder = Counting()
    batch, takers = WindowBatch(encoder, 4), [[], [], []]
    assert add_all(batch, takers, range(6)) == [False, False, False, True, False, False]
    batch.run()
    batch.run()
    assert encoder.sizes == [4, 4]
    assert values_of(takers) == [[0, 3], [1, 4], [2, 5]]
    assert takers[0][0].dtype == np.float16


@pytest.mark.parametrize(("size", "room", "kept"), [(8, 3, 2), (6, 4, 3), (5, 1, 1), (7, 6, 3)])
def test_where_memory_ends_the_batch_halves_and_stays_so_and_no_window_is_lost(
    size, room, kept, caplog
):
    encoder = Counting(room)
    batch, takers = WindowBatch(encoder, size), [[], []]
    add_all(batch, takers, range(21))
    batch.run()
    assert values_of(takers) == [list(range(0, 21, 2)), list(range(1, 21, 2))]
    assert batch.size == kept
    first_fit = next(i for i, n in enumerate(encoder.sizes) if n <= room)
    assert set(encoder.sizes[first_fit:]) == {kept}
    assert f"out of memory: batches of {kept} windows from here on" in caplog.text


def test_no_room_for_one_window_is_one_line():
    batch = WindowBatch(Counting(room=0), 2)
    with pytest.raises(ValueError, match=r"memory does not suffice for one window: lower encode"):
        add_all(batch, [[]], range(2))


class Overlapping:
    """Stands in for the way to a GPU: features of a batch are fetched when the next has begun."""

    overlaps = True

    def buffer(self, shape):
        return torch.full(shape, 255, dtype=torch.uint8)

    def moved(self, windows_BTHWC):
        return windows_BTHWC

    def free(self):
        pass


@pytest.mark.parametrize("room", [10, 2])
def test_a_batch_is_served_when_the_next_has_begun(room):
    batch, takers = WindowBatch(Counting(room), 4), [[], [], []]
    batch.feeder = Overlapping()
    ran = add_all(batch, takers, range(8))
    assert ran[3] is False
    assert True in ran[4:]
    add_all(batch, takers, range(8, 10))
    batch.run()
    assert values_of(takers) == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def fake_rates(monkeypatch, rates: dict[int, float]):
    """Let the clock be what batches of each size would take."""
    seen = []

    def rate(encoder, windows):
        encoder(windows)
        seen.append(len(windows))
        return rates[len(windows)]

    monkeypatch.setattr(batch_size, "_clips_a_second", rate)
    return seen


@pytest.mark.parametrize(
    ("rates", "best", "tried"),
    [
        ({1: 10, 2: 10, 4: 10}, 1, [1, 2, 4]),
        ({1: 10, 2: 18, 4: 18.1, 8: 18.2}, 2, [1, 2, 4, 8]),
        ({1: 10, 2: 10.1, 4: 20, 8: 20, 16: 20}, 4, [1, 2, 4, 8, 16]),
        ({2**k: 2.0**k for k in range(6)}, 16, [1, 2, 4, 8, 16]),
    ],
)
def test_the_batch_grows_while_that_pays(monkeypatch, rates, best, tried):
    seen = fake_rates(monkeypatch, rates)
    assert probed_size(Counting(), SHAPE, largest=16) == best
    assert seen == tried


def test_the_batch_stops_where_memory_ends(monkeypatch):
    fake_rates(monkeypatch, {2**k: 2.0**k for k in range(9)})
    assert probed_size(Counting(room=8), SHAPE) == 8


def test_rates_are_measured():
    assert probed_size(Counting(), SHAPE, largest=2) in (1, 2)


def test_a_probed_size_is_held_by_the_next_job_on_such_a_machine(monkeypatch, tmp_path):
    fake_rates(monkeypatch, {1: 1, 2: 2, 4: 2, 8: 2})
    path = tmp_path / "batch.json"
    assert held_size(Counting(), SHAPE, path) == 2
    fake_rates(monkeypatch, {})
    assert held_size(Counting(), SHAPE, path) == 2
    fake_rates(monkeypatch, {1: 3, 2: 1, 4: 1})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert held_size(Counting(), SHAPE, path) == 1
    assert read_json(path) == {"machine": ["cpu", 99], "batch": 1}
