"""What the tests on a GPU share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def exact_multiplications(monkeypatch):
    """TF32 rounds inputs to 10 bits, which is not what these tests are about."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
