"""MIL-NCE against a literal loop over its formula, the reference code's form, and its floors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.loss_cases import assert_close, gradients, random_case
from trainer.loss import CPU_TILE, GPU_TILE, mil_nce_loss, tile_of
from trainer.loss_plan import Past


def literal_loss(v, t, bags, excluded, *, temperature, symmetric, c):
    """The formula of trainer/loss.py, term by term, with scalars."""
    excluded = {tuple(pair) for pair in excluded}
    bags = [[k for k in bag if k >= 0] for bag in bags.tolist()]
    s = [[(v[i] * t[k]).sum() / temperature for k in range(len(t))] for i in range(len(v))]

    def negative(i, k):
        return k not in bags[i] and (i, k) not in excluded

    terms = []
    for i, bag in enumerate(bags):
        if not bag:
            continue
        positives = sum(s[i][k].exp() for k in bag)
        rest = sum((s[i][k].exp() for k in range(len(t)) if negative(i, k)), 0 * positives)
        if symmetric:
            for k in bag:
                for j in range(len(v)):
                    if negative(j, k):
                        rest = rest + s[j][k].exp()
        terms.append((c * positives + rest).log() - positives.log())
    return sum(terms) / len(terms) if terms else 0 * (v.sum() + t.sum()) * (1 / temperature)


GRID = list(itertools.product((True, False), (1, 2), (True, False), (2, 9, 10**6)))


@pytest.mark.parametrize(("symmetric", "c", "normalize", "tile"), GRID)
def test_loss_and_gradients_equal_the_literal_loop(symmetric, c, normalize, tile):
    for seed in range(4):
        v, t, bags, excluded = random_case(seed)
        temperature = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
        loss = mil_nce_loss(
            v, t, bags, temperature=temperature, excluded_E2=excluded, symmetric=symmetric,
            positive_weight=c, normalize=normalize, tile=tile,
        )  # fmt: skip
        unit = (functional.normalize(x, dim=1) if normalize else x for x in (v, t))
        expected = literal_loss(
            *unit, bags, excluded, temperature=temperature, symmetric=symmetric, c=c
        )
        assert_close(gradients(loss, v, t, temperature), gradients(expected, v, t, temperature))


def test_no_size_of_a_tile_changes_loss_or_gradients():
    """Larger cases than the literal loop can do, a memory bank among them."""
    v, t, bags, excluded = random_case(2, 60, 150, 6, excluded=300)
    random = np.random.default_rng(8)
    past = Past(
        torch.from_numpy(random.normal(size=(70, 4))), np.array([[3, 9], [59, 69]]),
        torch.from_numpy(random.normal(size=(40, 4))), np.array([[0, 0], [149, 39]]),
    )  # fmt: skip
    temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)

    def found(tile):
        loss = mil_nce_loss(
            v, t, bags, temperature=temperature, excluded_E2=excluded, past=past, tile=tile
        )
        return gradients(loss, v, t, temperature)

    expected = found(60 * 150)
    for tile in (1, 64, 1000, 8999, CPU_TILE, GPU_TILE, None):
        assert_close(found(tile), expected)


@pytest.mark.parametrize(
    ("free_gigabytes", "expected"),
    [(140, GPU_TILE), (5, GPU_TILE), (1, 2**23), (0.01, CPU_TILE), (0, CPU_TILE)],
)
def test_a_tile_is_as_large_as_suits_its_device(monkeypatch, free_gigabytes, expected):
    """On a GPU two of them take at most an eighth of what is free."""
    free = int(free_gigabytes * 1e9)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (free, 150 * 10**9))
    assert tile_of.__wrapped__(torch.device("cuda", 0)) == expected
    assert expected == CPU_TILE or 2 * 4 * expected <= free / 8
    assert tile_of(torch.device("cpu")) == CPU_TILE


@pytest.mark.parametrize("symmetric", [True, False])
def test_clips_without_any_caption_give_0(symmetric):
    v, t = torch.ones(3, 4, requires_grad=True), torch.zeros(0, 4, requires_grad=True)
    loss = mil_nce_loss(v, t, torch.full((3, 2), -1), temperature=1, symmetric=symmetric)
    assert_close(gradients(loss, v, t)[:2], [torch.zeros(()), torch.zeros(3, 4)])


@pytest.mark.parametrize(
    ("num_clips", "num_captions", "bag_size"), [(1, 1, 1), (1, 3, 2), (3, 1, 1), (4, 9, 1)]
)
def test_small_shapes_equal_the_literal_loop(num_clips, num_captions, bag_size):
    v, t, bags, excluded = random_case(7, num_clips, num_captions, bag_size, empty=False)
    for symmetric in (True, False):
        arguments = {"temperature": 0.5, "symmetric": symmetric}
        loss = mil_nce_loss(v, t, bags, excluded_E2=excluded, **arguments)
        expected = literal_loss(v, t, bags, excluded, c=1, **arguments)
        assert_close(gradients(loss + 0 * (v.sum() + t.sum()), v, t),
                     gradients(expected, v, t))  # fmt: skip


def test_gradcheck_of_embeddings_and_temperature():
    v, t, bags, excluded = random_case(3)
    temperature = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda v, t, tau: mil_nce_loss(v, t, bags, temperature=tau, excluded_E2=excluded),
        (v, t, temperature),
    )


def test_the_floors_are_0_and_log_2():
    eye = 60 * torch.eye(6, dtype=torch.float64)
    bags = torch.arange(6)[:, None]
    assert mil_nce_loss(eye, eye, bags, temperature=1).item() < 1e-12
    floor = mil_nce_loss(eye, eye, bags, temperature=1, positive_weight=2).item()
    assert abs(floor - math.log(2)) < 1e-12


def test_two_is_the_reference_codes_form():
    """log-sum-exp over the clip's row and its captions' columns together, positives in both."""
    random = np.random.default_rng(0)
    v = torch.from_numpy(random.normal(size=(4, 5))).requires_grad_()
    t = torch.from_numpy(random.normal(size=(12, 5))).requires_grad_()
    bags = torch.arange(12).reshape(4, 3)
    x_BBK = (v @ t.T).reshape(4, 4, 3)
    numerator_B = torch.logsumexp(x_BBK[torch.arange(4), torch.arange(4)], dim=1)
    both = torch.cat([x_BBK, x_BBK.transpose(0, 1)], dim=1).reshape(4, -1)
    expected = (torch.logsumexp(both, dim=1) - numerator_B).mean()
    loss = mil_nce_loss(v, t, bags, temperature=1, positive_weight=2)
    assert_close(gradients(loss, v, t), gradients(expected, v, t))


def test_one_sided_is_the_usual_video_to_text_form():
    random = np.random.default_rng(1)
    v = torch.from_numpy(random.normal(size=(4, 5))).requires_grad_()
    t = torch.from_numpy(random.normal(size=(9, 5))).requires_grad_()
    bags = torch.tensor([[0, 1], [1, 2], [5, 8], [4, 0]])
    logits_BN = functional.normalize(v, dim=1) @ functional.normalize(t, dim=1).T / 0.07
    positive_B = torch.logsumexp(logits_BN.gather(1, bags), dim=1)
    expected = (torch.logsumexp(logits_BN, dim=1) - positive_B).mean()
    loss = mil_nce_loss(v, t, bags, temperature=0.07, normalize=True, symmetric=False)
    assert_close(gradients(loss, v, t), gradients(expected, v, t))


def test_all_negatives_excluded_and_all_bags_empty_give_0_loss_and_gradient():
    v, t, _, _ = random_case(0, 2, 2)
    bags = torch.tensor([[0], [1]])
    loss = mil_nce_loss(v, t, bags, temperature=1, excluded_E2=np.array([[0, 1], [1, 0]]))
    assert_close(gradients(loss, v, t), [torch.zeros(()), torch.zeros(2, 4), torch.zeros(2, 4)])
    loss = mil_nce_loss(v, t, torch.full((2, 3), -1), temperature=1)
    assert_close(gradients(loss, v, t), [torch.zeros(()), torch.zeros(2, 4), torch.zeros(2, 4)])


def test_no_clip_at_all_gives_0():
    v = torch.zeros(0, 4, requires_grad=True)
    t = torch.zeros(0, 4, requires_grad=True)
    loss = mil_nce_loss(v, t, torch.zeros(0, 3, dtype=torch.int64), temperature=1)
    loss.backward()
    assert loss.item() == 0
    assert v.grad.shape == (0, 4)


def test_low_precision_inputs_are_computed_in_fp32():
    v, t, bags, excluded = random_case(5)
    arguments = {"temperature": 0.07, "excluded_E2": excluded}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        low = [x.detach().to(dtype).requires_grad_() for x in (v, t)]
        exact = [x.detach().double().requires_grad_() for x in low]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mil_nce_loss(*low, bags, **arguments)
        expected = mil_nce_loss(*exact, bags, **arguments)
        assert loss.dtype == torch.float32
        assert abs(loss.item() - expected.item()) < 1e-5 * abs(expected.item())
        assert torch.autograd.grad(loss, low)[0].dtype == dtype


@pytest.mark.parametrize("size", [1, 30])
def test_each_clips_own_loss_and_any_weighting_of_them(size):
    v, t, bags, excluded = random_case(4)
    temperature = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    arguments = {"temperature": temperature, "excluded_E2": excluded}
    loss_B = mil_nce_loss(v * size, t, bags, reduction="none", **arguments)
    assert loss_B.shape == (5,)
    assert loss_B[1] == 0  # an empty bag
    mean = mil_nce_loss(v * size, t, bags, **arguments)
    assert_close(gradients(loss_B.sum() / 4, v, t, temperature), gradients(mean, v, t, temperature))
    weights = torch.tensor([0.5, 2.0, -1.0, 0.0, 3.0], dtype=torch.float64)

    def weighed(v, t):
        return mil_nce_loss(v * size, t, bags, reduction="none", **arguments) @ weights

    torch.autograd.gradcheck(weighed, (v, t))
    with pytest.raises(ValueError, match="reduction is 'sum', allowed: 'mean', 'none'"):
        mil_nce_loss(v, t, bags, temperature=1, reduction="sum")
