"""The tiles of the loss: sums of e^s, also where no float holds them."""

from __future__ import annotations

import pytest
import torch

from tests.loss_cases import assert_close, gradients, random_case
from trainer.loss import mil_nce_loss
from trainer.tiles import log_sums, make_block


@pytest.mark.parametrize("tile", [1, 4, 9, 1000])
@pytest.mark.parametrize("safe", [True, False])
def test_sums_of_any_tiles_are_those_of_the_whole_matrix(tile, safe):
    v, t, bags, excluded = random_case(4)
    positives = (bags >= 0).nonzero()
    rows, columns = positives[:, 0], bags[positives[:, 0], positives[:, 1]]
    block = make_block(
        (len(v), len(t)), (rows.numpy(), columns.numpy()), (excluded[:, 0], excluded[:, 1]),
        tile=tile, device=v.device,
    )  # fmt: skip
    own = [(t.rows.stop - t.rows.start) * (t.columns.stop - t.columns.start)
           for _, t in block.tiles()]  # fmt: skip
    assert sum(own) == len(v) * len(t)
    assert max(own) <= tile
    with torch.no_grad():
        sums_X, sums_Y, s_P = log_sums(v, t, block, safe=safe, with_columns=True)
        s = v @ t.T
        assert torch.allclose(s_P, s[rows, columns], rtol=0, atol=1e-12)
        s[rows, columns] = -torch.inf
        s[excluded[:, 0], excluded[:, 1]] = -torch.inf
        assert torch.allclose(sums_X, s.logsumexp(dim=1), rtol=0, atol=1e-12)
        assert torch.allclose(sums_Y, s.logsumexp(dim=0), rtol=0, atol=1e-12)


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
