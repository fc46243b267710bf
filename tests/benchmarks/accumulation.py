"""Ways to have many negatives in little memory: what a step costs and how many negatives it has.

    python -m tests.benchmarks.accumulation [--quick]

A step (both towers, loss, backward) of 2,048 clips and 8 captions each on the CPU, fp32: features
[2, 1024], captions of 12 words, word vectors 300, hidden 2,048, embeddings 512.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.benchmarks.measure import begin, measure, table
from trainer.gradient_cache import GradientCache
from trainer.loss import mil_nce_loss
from trainer.loss_plan import NO_PAIRS, Past
from trainer.towers import TextTower, VideoTower, caption_words

CLIPS, BAG, LENGTH, WORDS, PARTS = 2048, 8, 12, 20_000, 8


class Towers(nn.Module):
    """Both towers at the sizes above."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.video = VideoTower(1024, 512, "mean", "projection")
        self.text = TextTower(WORDS, 300, 2048, 512)

    def forward(self, features, mask, words):
        """Embeddings of length 1 and a temperature."""
        pair = (self.video(features, mask), self.text(words))
        return *(functional.normalize(x, dim=1) for x in pair), 0.07


def batch(num_clips: int) -> dict:
    """Random features and captions."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, WORDS + 1) ** 1.1
    ids = random.choice(WORDS, (num_clips * BAG, LENGTH), p=weights / weights.sum()) + 1
    return {"features": torch.randn(num_clips, 2, 1024), "ids": ids}


def inputs(data: dict, part) -> tuple:
    features = data["features"][part.clips]
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    return features, mask, caption_words(data["ids"][part.captions])


class Part:
    """A range of clips with their captions."""

    def __init__(self, start: int, stop: int) -> None:
        self.clips, self.captions = slice(start, stop), slice(start * BAG, stop * BAG)


def loss_of(clips, captions, temperature, past=None) -> torch.Tensor:
    bags = torch.arange(len(captions)).view(len(clips), BAG)
    return mil_nce_loss(clips, captions, bags, temperature=temperature, past=past)


def work(way: str, num_clips: int):
    """Work for `measure`."""
    model, data = Towers(), batch(num_clips)
    each = num_clips // PARTS
    past = None
    if way == "bank":
        rows = functional.normalize(torch.randn(num_clips * (1 + BAG), 512), dim=1)
        past = Past(rows[num_clips:], NO_PAIRS, rows[:num_clips], NO_PAIRS)
    cache = GradientCache(
        model, model, inputs, chunk=each, context=nullcontext, device=torch.device("cpu")
    )

    def whole(part: Part, share: float = 1.0) -> float:
        loss = loss_of(*model(*inputs(data, part)), past) * share
        loss.backward()
        return loss.item()

    def run() -> float:
        model.zero_grad()
        if way == "cache":
            return cache.step(data, num_clips, num_clips * BAG, loss_of).item()
        if way == "plain":
            cuts = range(0, num_clips, each)
            return sum(whole(Part(start, start + each), 1 / PARTS) for start in cuts)
        return whole(Part(0, num_clips if way == "whole" else each))

    whole(Part(0, 8))
    return run


def main() -> None:
    """Print the table."""
    quick = begin(argparse.ArgumentParser(description=__doc__)).quick
    clips = CLIPS // 16 if quick else CLIPS
    each = clips // PARTS

    def negatives(clips: int) -> int:
        return 2 * BAG * (clips - 1)

    ways = {
        "whole": ("whole batch", clips, negatives(clips), "it fits"),
        "cache": (f"gradient cache, chunks of {each}", clips, negatives(clips), "it does not"),
        "plain": (f"plain accumulation, {PARTS} parts", clips, negatives(each), "to compare"),
        "bank": (
            f"bank of {clips} clips, {clips * BAG} captions", each,
            negatives(each) + 2 * BAG * clips, "small batches; slightly old negatives",
        ),
        "part": ("small batch alone", each, negatives(each), "-"),
    }  # fmt: skip
    found = measure(*(partial(work, way, clips) for way in ways), repeats=1 if quick else 2)
    rows = [
        ["way", "clips a step", "negatives a clip", "ms a clip", "time ratio", "GB", "when"]
    ]  # fmt: skip
    usual = found[0]["seconds"] / clips
    for (name, count, others, when), row in zip(ways.values(), found, strict=True):
        each_clip = row["seconds"] / count
        ratio = each_clip / usual
        rows.append([name, count, others, 1000 * each_clip, ratio, row["gigabytes"], when])
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
