"""The tiles of the loss: sums of e^s, also where no float holds them."""

from __future__ import annotations

import pytest
import torch

from tests.loss_cases import assert_close, gradients, random_case
from trainer.loss import mil_nce_loss


@pytest.mark.parametrize("symmetric", [True, False])
def test_similarities_too_large_for_their_exp_equal_the_literal_loop(symmetric):
    """Beyond `SAFE` the sums are kept as logarithms."""
    for size in (3, 12):  # |s| up to 300, then far above the float64 limit of e^709
        v, t, bags, excluded = random_case(2)
        arguments = {"temperature": 0.5, "symmetric": symmetric}
        loss = mil_nce_loss(v * size, t * size, bags, excluded_E2=excluded, tile=9, **arguments)
        s = (v * size) @ (t * size).T / 0.5
        own = torch.zeros(s.shape, dtype=torch.bool)
        for i, bag in enumerate(bags.tolist()):
            own[i, [k for k in bag if k >= 0]] = True
        negative = ~own
        negative[excluded[:, 0], excluded[:, 1]] = False
        masked = s.masked_fill(~negative, -torch.inf)
        terms = []
        for i in own.any(dim=1).nonzero()[:, 0].tolist():
            parts = [s[i][own[i]], masked[i]] + [masked[:, own[i]].flatten()] * symmetric
            terms.append(torch.cat(parts).logsumexp(dim=0) - s[i][own[i]].logsumexp(dim=0))
        found, expected = gradients(loss, v, t), gradients(sum(terms) / len(terms), v, t)
        assert_close(found, expected, 1e-10 * size * size)
    loss = mil_nce_loss(v.float() * 1000, t.float() * 1000, bags, temperature=0.5)
    assert all(x.isfinite().all() for x in gradients(loss, v, t))
