"""Weights of libswscale's kernel."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.swscale import cubic


@pytest.mark.parametrize(("before", "after"), [(10, 10), (64, 23), (23, 64), (1, 5)])
def test_weights_keep_what_is_flat_and_where_it_lies(before, after):
    weights = cubic(before, after)
    assert weights.shape == (after, before)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-12)
    if before == after:
        np.testing.assert_allclose(weights, np.eye(before), atol=1e-12)
