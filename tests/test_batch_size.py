"""The size of a batch: probed while it pays, up to where memory ends, and held."""

from __future__ import annotations

import pytest
import torch

from pipeline.encoders import batch_size
from pipeline.encoders.batch_size import held_size, probed_size
from pipeline.formats.files import read_json
from tests.stand_ins import NO_MEMORY, Counting

SHAPE = (2, 2, 2, 3)


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


@pytest.mark.parametrize("fault", NO_MEMORY, ids=str)
def test_the_batch_stops_where_memory_ends(monkeypatch, fault):
    fake_rates(monkeypatch, {2**k: 2.0**k for k in range(9)})
    assert probed_size(Counting(8, fault), SHAPE) == 8


def test_another_fault_of_the_network_is_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes cannot"):
        probed_size(Counting(8, RuntimeError("shapes cannot be multiplied")), SHAPE)


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
