"""The gradient cache gives the step without chunks: any chunk, any rank, dropout, little memory."""

from __future__ import annotations

import logging
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from tests.ranks import run_ranks
from trainer import distributed
from trainer.distributed import World
from trainer.gradient_cache import DoesNotFit, GradientCache, ranges
from trainer.loss import mil_nce_loss

BAG = 2


class Towers(nn.Module):
    """Small towers with a layer norm, dropout if asked, and a limit of the rows that fit."""

    def __init__(self, dropout: float = 0.0, fits: int = 1000, fits_with_graph: int = 1000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.video = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 4))
        self.text = nn.Sequential(nn.Linear(6, 7), nn.Dropout(dropout), nn.ReLU(), nn.Linear(7, 4))
        self.log_temperature = nn.Parameter(torch.tensor(-0.7))
        self.fits, self.fits_with_graph = fits, fits_with_graph

    def forward(self, clips, captions):
        limit = self.fits_with_graph if torch.is_grad_enabled() else self.fits
        if len(clips) > limit:
            raise torch.OutOfMemoryError("out of memory: a test")
        return self.video(clips), self.text(captions), self.log_temperature.exp()


class Graph:
    """Lives as long as the graph that holds it."""


class FailingBackward(torch.autograd.Function):
    """The identity, out of memory in the backward pass of more than two rows."""

    @staticmethod
    def forward(ctx, rows, graph):
        ctx.graph = graph
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        if len(gradient) > 2:
            raise torch.OutOfMemoryError("out of memory: a test")
        return gradient, None


class Watched(Towers):
    """Towers that count, at each forward with a graph, the earlier graphs that are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[weakref.ref] = []
        self.alive: list[int] = []

    def forward(self, clips, captions):
        self.alive.append(sum(graph() is not None for graph in self.graphs))
        clips, captions, temperature = super().forward(clips, captions)
        if torch.is_grad_enabled() and len(clips):
            graph = Graph()
            self.graphs.append(weakref.ref(graph))
            clips = FailingBackward.apply(clips, graph)
        return clips, captions, temperature


def batch_of(num_clips: int = 7, seed: int = 0) -> dict:
    random = np.random.default_rng(seed)
    return {
        "clips": torch.from_numpy(random.normal(size=(num_clips, 5))),
        "captions": torch.from_numpy(random.normal(size=(num_clips * BAG, 6))),
        "bags": torch.arange(num_clips * BAG).view(num_clips, BAG),
    }


def loss_of(batch: dict, world: World | None = None):
    def loss(clips, captions, temperature):
        return mil_nce_loss(
            clips, captions, batch["bags"], temperature=temperature, world=world, normalize=True
        )

    return loss


def inputs(batch: dict, part) -> tuple:
    return batch["clips"][part.clips], batch["captions"][part.captions]


def cache_of(model, parallel=None, chunk=3) -> GradientCache:
    return GradientCache(
        model, parallel or model, inputs, chunk=chunk, context=nullcontext,
        device=torch.device("cpu"),
    )  # fmt: skip


def step(cache: GradientCache, batch: dict, world: World | None = None, scaled=lambda loss: loss):
    num_clips = len(batch["clips"])
    return cache.step(batch, num_clips, num_clips * BAG, loss_of(batch, world), scaled)


def result(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_close(found, expected, tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= tolerance


def uncached(batch: dict, model: Towers, chunk: int = 1000) -> list[torch.Tensor]:
    """One graph over all chunks."""
    parts = [
        model(*inputs(batch, part))
        for part in ranges(len(batch["clips"]), len(batch["captions"]), chunk)
    ]
    clips, captions = (torch.cat([part[side] for part in parts]) for side in (0, 1))
    loss = loss_of(batch)(clips, captions, parts[0][2])
    loss.backward()
    return result(model, loss)


def test_one_chunk_equals_the_plain_step_bit_for_bit_with_dropout():
    batch = batch_of()
    model, other = (Towers(dropout=0.5).double() for _ in range(2))
    torch.manual_seed(1)
    expected = uncached(batch, other)
    torch.manual_seed(1)
    found = result(model, step(cache_of(model, chunk=100), batch))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_chunks_of_any_size_equal_one_graph_over_them(chunk, dropout):
    batch = batch_of()
    model, other = (Towers(dropout=dropout).double() for _ in range(2))
    torch.manual_seed(1)
    expected = uncached(batch, other, chunk)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    found = result(model, step(cache_of(model, chunk=chunk), batch))
    assert_close(found, expected, 1e-12)
    assert torch.equal(after, torch.get_rng_state())
    if not dropout:
        assert_close(found, uncached(batch, Towers().double()), 1e-12)


def test_the_loss_is_scaled_once():
    batch = batch_of()
    model, other = Towers().double(), Towers().double()
    _, *expected = uncached(batch, other)
    step(cache_of(model), batch, scaled=lambda loss: 1024 * loss)
    assert_close([p.grad / 1024 for p in model.parameters()], expected, 1e-12)


@pytest.mark.parametrize("limit", [{"fits": 3}, {"fits_with_graph": 2}])
def test_a_chunk_that_does_not_fit_is_halved_and_the_result_stays(limit, caplog):
    batch = batch_of()
    model = Towers(**limit).double()
    cache = cache_of(model, chunk=7)
    with caplog.at_level(logging.WARNING):
        found = result(model, step(cache, batch))
    assert_close(found, uncached(batch, Towers().double()), 1e-12)
    assert "out of memory with 7 clips in a chunk: going on with 4" in caplog.text
    assert cache.chunk == 2
    model.zero_grad()
    caplog.clear()
    assert_close(result(model, step(cache, batch)), found, 1e-12)
    assert not caplog.text


def test_a_graph_that_did_not_fit_is_gone_while_its_halves_run():
    batch = batch_of(8)
    model = Watched().double()
    found = result(model, step(cache_of(model, chunk=8), batch))
    assert_close(found, uncached(batch, Towers().double()), 1e-12)
    assert len(model.graphs) == 1 + 2 + 4
    assert set(model.alive) == {0}


class Drawing(Towers):
    """Towers that draw a random number before they may run out of memory."""

    def forward(self, clips, captions):
        torch.rand(1)
        return super().forward(clips, captions)


def test_what_was_drawn_in_vain_changes_no_dropout():
    found = []
    for fits, chunk in ((4, 7), (1000, 4)):
        model = Drawing(dropout=0.5, fits=fits).double()
        torch.manual_seed(1)
        found.append(result(model, step(cache_of(model, chunk=chunk), batch_of())))
    assert_close(*found, 0)


def test_what_cannot_be_halved_is_one_line():
    with pytest.raises(DoesNotFit, match="not even one clip fits into memory"):
        step(cache_of(Towers(fits=0).double()), batch_of())
    with pytest.raises(DoesNotFit, match=r"its dropout cannot be cut: lower run\.train\.chunk"):
        step(cache_of(Towers(dropout=0.5, fits_with_graph=2).double()), batch_of())


def on_a_rank(world: World, chunks: list[int]) -> dict:
    """Steps of SGD in chunks of another size on each rank, and how often gradients travelled."""
    batch = batch_of(9)
    cuts = [0, 2, 9] if world.size == 2 else [0, 2, 2, 6, 9]
    own, captions = slice(*cuts[world.rank :][:2]), slice(*(2 * c for c in cuts[world.rank :][:2]))
    mine = {
        "clips": batch["clips"][own],
        "captions": batch["captions"][captions],
        "bags": batch["bags"][own] - captions.start,
    }
    model = Towers().double()
    parallel = distributed.parallel(model, world)
    sent = distributed.count_exchanges(parallel)
    cache = cache_of(model, parallel, chunk=chunks[world.rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(step(cache, mine, world).item())
        optimizer.step()
    return {"losses": losses, "state": model.state_dict(), "sent": sent}


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_with_different_chunks_equal_one_process_with_one_exchange_a_step(size, tmp_path):
    batch, model = batch_of(9), Towers().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(uncached(batch, model)[0].item())
        optimizer.step()
    numbers = sum(p.numel() for p in model.parameters())
    for found in run_ranks(on_a_rank, size, [1, 3, 2, 100], tmp_path, seconds=180):
        assert np.allclose(found["losses"], losses, rtol=0, atol=1e-12)
        for name, value in model.state_dict().items():
            assert (found["state"][name] - value).abs().max() <= 1e-12, name
        assert found["sent"] == [numbers] * 3
