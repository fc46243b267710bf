"""Batches: always full, across videos, and smaller where memory ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.encoders.batches import WindowBatch
from tests.stand_ins import NO_MEMORY, Counting

SHAPE = (2, 2, 2, 3)


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


@pytest.mark.parametrize("fault", NO_MEMORY, ids=str)
def test_every_form_of_a_lack_of_memory_halves_the_batch(fault):
    batch, takers = WindowBatch(Counting(3, fault), 8), [[]]
    add_all(batch, takers, range(8))
    assert (batch.size, values_of(takers)) == (2, [list(range(8))])


def test_another_fault_of_the_network_is_not_taken_for_a_lack_of_memory():
    batch = WindowBatch(Counting(3, RuntimeError("shapes cannot be multiplied")), 8)
    with pytest.raises(RuntimeError, match="shapes cannot"):
        add_all(batch, [[]], range(8))


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
