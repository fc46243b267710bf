"""Alarms: a large norm, a collapse, a loss at chance; each is told, and once."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.synthetic_bags import train_settings
from trainer.alarms import Alarms, spread
from trainer.distributed import World


def alarms(chance: float = 5.0, **changes) -> Alarms:
    return Alarms(train_settings(warmup_samples=0, **changes), chance, speaks=True)


def test_a_large_gradient_norm_is_told_once_until_it_is_over(caplog):
    watched = alarms()
    with caplog.at_level(logging.WARNING):
        for norms in ((3.0, 25.0), (30.0,), (1.0,), (21.0,)):
            for norm in norms:
                watched.step(norm)
            rang = watched.line({"step": 1, "loss": 1.0})
            assert rang == (["norm"] if max(norms) > 20 else [])
    assert caplog.text.count("the gradient norm reached") == 2
    assert "reached 25, above 20" in caplog.text


def test_collapse_and_a_loss_at_chance_are_told_after_a_while():
    line = {"loss": 4.95, "clip_std": 0.01, "caption_std": 0.9}
    assert alarms().line(line | {"step": 200}) == []
    assert alarms().line(line | {"step": 201}) == ["chance", "clip_std"]
    assert alarms().line(line | {"step": 201, "loss": 4.0, "clip_std": 0.5}) == []
    assert alarms(bank_clips=8).line(line | {"step": 201, "clip_std": 1.0}) == []


def test_gradients_that_vanish_in_fp16_are_told_with_what_raises_them(caplog):
    for precision in ("fp16", "fp32"):
        watched = alarms(precision=precision)
        watched.step(0.0)
        watched.step(1.0)
        assert watched.line({"step": 1}) == (["vanished"] if precision == "fp16" else [])
        watched.step(1.0)
        assert watched.line({"step": 2}) == []
    assert "raise train.fp16_init_scale (overflowing steps want it lower)" in caplog.text


def test_spread_is_one_for_scattered_and_zero_for_equal_embeddings():
    torch.manual_seed(0)
    scattered, equal = torch.randn(4000, 16), torch.ones(7, 16)
    found = spread(World.alone(), scattered, equal)
    assert found["clip_std"] == pytest.approx(1, abs=0.01)
    assert found["caption_std"] == pytest.approx(0, abs=1e-6)
    assert spread(World.alone(), scattered[:0], equal)["clip_std"] == 1.0
