"""Random cases of the loss, and what to compare of them."""

from __future__ import annotations

import numpy as np
import torch


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
