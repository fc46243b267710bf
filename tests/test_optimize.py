"""The learning rate: it rises, falls, and scales with the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.synthetic_bags import train_settings
from trainer.model import build_model
from trainer.optimize import learning_rate, make_optimizer, peak_learning_rate, seed_step


@pytest.mark.parametrize(
    ("scaling", "batch", "peak"),
    [("none", 1024, 8e-4), ("linear", 1024, 3.2e-3), ("sqrt", 1024, 1.6e-3), ("sqrt", 64, 4e-4)],
)
def test_the_learning_rate_scales_with_the_batch(scaling, batch, peak):
    settings = train_settings(
        lr=8e-4, lr_scaling=scaling, lr_base_batch=256, global_batch=batch, warmup_samples=batch
    )
    assert peak_learning_rate(settings) == pytest.approx(peak)
    rates = [learning_rate(settings, step, 5) for step in range(5)]
    golden = np.array([0.1, 1.0, 0.8535534, 0.5, 0.1464466])
    assert rates == pytest.approx((golden * peak).tolist(), rel=1e-6)


def test_weight_decay_is_for_matrices_alone_and_frozen_words_are_left_out():
    """One step without gradients shows it: AdamW then multiplies by 1 - lr × decay."""
    settings = train_settings(lr=0.1, weight_decay=0.5)
    model = build_model(settings, feature_dim=4, num_words=6)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = make_optimizer(model, settings)
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    optimizer.step()
    decayed = {"video.project.weight", "text.fc1.weight", "text.fc2.weight"}
    assert decayed < set(before)
    for name, value in model.named_parameters():
        factor = 0.95 if name in decayed else 1.0
        torch.testing.assert_close(value.detach(), factor * before[name], msg=name)
    frozen = build_model(train_settings(freeze_words=True), feature_dim=4, num_words=6)
    groups = make_optimizer(frozen, settings).param_groups
    held = {id(value) for group in groups for value in group["params"]}
    assert id(frozen.text.words.weight) not in held


def test_the_draws_of_a_step_depend_on_seed_step_and_rank_alone():
    places = [(1, 2, 3), (1, 2, 3), (0, 2, 3), (1, 3, 2), (1, 2, 0)]
    draws = []
    for place in places:
        torch.rand(len(draws))
        seed_step(*place)
        draws.append(torch.rand(4).tolist())
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) == 4
