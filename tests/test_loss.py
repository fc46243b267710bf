"""MIL-NCE against a literal loop over its formula, the reference code's form, and its floors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainer.loss import mil_nce_loss
from trainer.negatives import (
    CaptionKeys,
    ClipKeys,
    chance_level,
    count_negatives,
    excluded_pairs,
)


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


def random_case(seed, num_clips=5, num_captions=7, bag_size=3, *, empty=True, excluded=4):
    """Embeddings, bags with padding and shared captions, and excluded pairs."""
    random = np.random.default_rng(seed)
    bags = np.stack([random.permutation(num_captions)[:bag_size] for _ in range(num_clips)])
    bags[random.random(bags.shape) < 0.3] = -1
    if empty:
        bags[1] = -1
    pairs = {
        (int(random.integers(num_clips)), int(random.integers(num_captions)))
        for _ in range(excluded)
    }
    pairs = sorted((i, k) for i, k in pairs if k not in bags[i])
    v = torch.from_numpy(random.normal(size=(num_clips, 4))).requires_grad_()
    t = torch.from_numpy(random.normal(size=(num_captions, 4))).requires_grad_()
    return v, t, torch.from_numpy(bags), np.array(pairs, np.int64).reshape(-1, 2)


def gradients(loss, *inputs):
    return [loss.detach(), *torch.autograd.grad(loss, inputs)]


def assert_close(found, expected, tolerance=1e-12):
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= tolerance, (a, b)


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


def literal_exclusion(clips, captions, policy, margin, same_text):
    found = []
    for i in range(len(clips.video_B)):
        bag = {k for k in clips.bag_idx_BA[i].tolist() if k >= 0}
        for k in range(len(captions.video_N)):
            same_video = clips.video_B[i] == captions.video_N[k]
            meets = (
                captions.start_N[k] <= clips.stop_B[i] + margin
                and captions.stop_N[k] >= clips.start_B[i] - margin
            )
            out = {"none": False, "overlap": same_video and meets, "same_video": same_video}[policy]
            out |= same_text and captions.hash_N[k] in {captions.hash_N[j] for j in bag}
            if out and k not in bag:
                found.append((i, k))
    return found


@pytest.mark.parametrize("policy", ["none", "overlap", "same_video"])
@pytest.mark.parametrize("same_text", [True, False])
def test_excluded_pairs_equal_a_literal_loop(policy, same_text):
    for seed in range(5):
        random = np.random.default_rng(seed)
        start_N, start_B = random.uniform(0, 20, 9), random.uniform(0, 20, 6)
        captions = CaptionKeys(
            video_N=random.integers(0, 3, 9), start_N=start_N, stop_N=start_N + 2,
            hash_N=random.integers(0, 4, 9),
        )  # fmt: skip
        clips = ClipKeys(
            video_B=random.integers(0, 3, 6), start_B=start_B, stop_B=start_B + 3,
            bag_idx_BA=random_case(seed, 6, 9)[2].numpy(),
        )  # fmt: skip
        found = excluded_pairs(
            clips, captions, policy=policy, margin_seconds=1, exclude_same_text=same_text
        )
        assert found.dtype == np.int64
        expected = literal_exclusion(clips, captions, policy, 1, same_text)
        assert [tuple(pair) for pair in found.tolist()] == expected


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("c", [1, 2])
def test_chance_level_is_the_loss_of_equal_embeddings(symmetric, c):
    for seed in range(4):
        v, t, bags, excluded = random_case(seed)
        loss = mil_nce_loss(
            torch.ones_like(v), torch.ones_like(t), bags, temperature=0.3, excluded_E2=excluded,
            symmetric=symmetric, positive_weight=c,
        )  # fmt: skip
        negatives_B = count_negatives(bags.numpy(), excluded, len(t), symmetric=symmetric)
        level = chance_level((bags.numpy() >= 0).sum(axis=1), negatives_B, c)
        assert abs(level - loss.item()) < 1e-12
