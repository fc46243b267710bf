"""The batch that every start computes, to be compared."""

from __future__ import annotations

import torch

from tests.synthetic_bags import make_results, step_data
from trainer.checkpoint import fingerprint
from trainer.fixed_batch import fixed_batch
from trainer.model import build_model


def test_the_fixed_batch_waits_for_no_rank_and_changes_nothing(tmp_path):
    """A norm over all ranks exchanges only while it trains; rank 0 is alone with this batch."""
    data = step_data(make_results(tmp_path), norm="batch")
    model = build_model(data.settings, feature_dim=12, num_words=40, max_caption_words=5)
    modes, before = [], fingerprint(model)
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    assert "gradients" in fixed_batch(model, data, torch.device("cpu"))
    assert modes
    assert not any(modes)
    assert model.training
    assert fingerprint(model) == before
