"""The learning rate: it rises, falls, and scales with the batch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.synthetic_bags import train_settings
from trainer.optimize import learning_rate, peak_learning_rate


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
