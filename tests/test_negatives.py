"""Which pairs are no negatives, and the loss at chance, against literal loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.loss_cases import random_case
from trainer.loss import mil_nce_loss
from trainer.negatives import (
    CaptionKeys,
    ClipKeys,
    chance_level,
    count_negatives,
    excluded_pairs,
)


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
