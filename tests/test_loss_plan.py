"""What the loss is given is looked at before any index reaches a GPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trainer.loss import mil_nce_loss


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"bag_idx_BA": torch.tensor([[7], [0]])}, r"bag_idx spans \[0, 7\], allowed: \[-1, 2\]"),
        ({"bag_idx_BA": torch.tensor([[-2], [0]])}, r"bag_idx spans \[-2, 0\]"),
        ({"bag_idx_BA": torch.tensor([[1, 1], [0, 2]])}, "twice"),
        ({"bag_idx_BA": torch.tensor([[0]])}, r"bag_idx \(1, 1\) does not fit clips \(2, 4\)"),
        ({"captions_ND": torch.zeros(3, 5)}, r"clips \(2, 4\) and captions \(3, 5\)"),
        ({"temperature": 0.0}, "temperature is 0.0, must be above 0"),
        ({"temperature": torch.tensor(-1.0)}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"excluded_E2": np.array([[0, 3]])}, "outside 2 clips × 3 captions"),
        ({"clips_BD": torch.full((2, 4), math.nan)}, "2 of 2 clip embeddings are NaN"),
        ({"captions_ND": torch.full((3, 4), math.inf)}, "3 of 3 caption embeddings"),
    ],
)
def test_bad_input_is_named(change, line):
    arguments = {
        "clips_BD": torch.ones(2, 4),
        "captions_ND": torch.ones(3, 4),
        "bag_idx_BA": torch.tensor([[0], [2]]),
        "temperature": 1.0,
    } | change
    with pytest.raises(ValueError, match=line):
        mil_nce_loss(**arguments)
