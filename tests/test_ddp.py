"""Several ranks give the loss and the gradients of one process, for every parameter.

SGD without momentum shows a gradient that is off by a factor; Adam would hide it.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.ranks import run_ranks
from trainer import distributed
from trainer.distributed import World
from trainer.loss import mil_nce_loss

STEPS = 3
CASES = {
    "even": {},
    "text side only": {"symmetric": False},
    "reference weight": {"positive_weight": 2},
    "excluded pairs, also between ranks": {"excluded": 30},
    "an empty bag": {"empty": [1]},
    "a rank whose every bag is empty": {"empty": [0, 1, 2, 3, 4]},
    "every bag is empty": {"empty": list(range(12))},
    "a rank without clips": {"skip_rank": True},
    "a rank with clips and no caption": {"without_captions": True},
    "a rank with clips and no caption, text side only": {
        "without_captions": True,
        "symmetric": False,
    },
    "small tiles that do not divide": {"tile": 7},
    "one caption a bag, one caption each": {"bag_size": 1},
    "captions shared by clips": {"captions_a_clip": 0.5},
    "one caption a bag, shared": {"bag_size": 1, "captions_a_clip": 0.4},
    "every negative excluded": {"excluded": "all"},
    "similarities too large for their exp": {
        "normalize": False,
        "size": 200.0,
        "lr": 1e-6,
        "loose": 100,
    },
    "each clip's own loss": {"reduction": "none"},
    "fixed temperature": {"learn": False},
    "dot products": {"normalize": False},
}


class Towers(nn.Module):
    """Two small towers and a temperature."""

    def __init__(self, learn: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.video, self.text = nn.Linear(5, 4), nn.Linear(6, 4)
        self.log_temperature = nn.Parameter(torch.tensor(-0.7)) if learn else None

    def forward(self, clips, captions):
        temperature = 0.5 if self.log_temperature is None else self.log_temperature.exp()
        return self.video(clips), self.text(captions), temperature


def split_of(num_clips: int, size: int, skip_rank: bool) -> list[int]:
    """Clips of each rank, uneven; with `skip_rank` the last rank gets none."""
    ranks = max(1, size - 1) if skip_rank else size
    cuts = [num_clips * (r * r + r) // (ranks * ranks + ranks) for r in range(ranks + 1)]
    counts = [b - a for a, b in itertools.pairwise(cuts)]
    return counts + [0] * (size - ranks)


def make_batch(step: int, counts: list[int], case: dict) -> dict:
    """A global batch whose bags stay within a rank's clips, and its split into ranks."""
    random = np.random.default_rng(step)
    bag_size, each = case.get("bag_size", 3), case.get("captions_a_clip", 2)
    num_captions = [1 + int(each * count) if count else 0 for count in counts]
    if case.get("without_captions"):
        num_captions[-1] = 0
    bags = []
    for count, captions in zip(counts, num_captions, strict=True):
        for _ in range(count):
            bag = np.full(bag_size, -1)
            chosen = random.permutation(captions)[: random.integers(1, bag_size + 1)]
            bag[: len(chosen)] = chosen
            bags.append(bag)
    bags = np.array(bags)
    bags[case.get("empty", [])] = -1
    first = np.repeat(np.cumsum([0, *num_captions[:-1]]), counts)
    global_bags = np.where(bags >= 0, bags + first[:, None], -1)
    pairs = set(itertools.product(range(sum(counts)), range(sum(num_captions))))
    if case.get("excluded") != "all":
        pairs = {
            (int(random.integers(sum(counts))), int(random.integers(sum(num_captions))))
            for _ in range(case.get("excluded", 0))
        }
    return {
        "clips": torch.from_numpy(random.normal(size=(sum(counts), 5))) * case.get("size", 1.0),
        "captions": torch.from_numpy(random.normal(size=(sum(num_captions), 6))),
        "bags": torch.from_numpy(bags),
        "global_bags": torch.from_numpy(global_bags),
        "num_captions": num_captions,
        "excluded": np.array(
            sorted((i, k) for i, k in pairs if k not in global_bags[i]), np.int64
        ).reshape(-1, 2),
    }


def train(case: dict, world: World, size: int, dtype: torch.dtype) -> dict:
    """Losses and parameters after a few steps, on one rank of `size` or on all data alone."""
    model = Towers(case.get("learn", True)).to(dtype)
    parallel = distributed.parallel(model, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=case.get("lr", 0.3))
    losses = []
    for step in range(STEPS):
        counts = split_of(12, size, case.get("skip_rank", False))
        batch = make_batch(step, counts, case)
        clips, captions, bags = batch["clips"].to(dtype), batch["captions"].to(dtype), "global_bags"
        rows = slice(None)
        if world.size > 1:
            rows = slice(sum(counts[: world.rank]), sum(counts[: world.rank + 1]))
            first = sum(batch["num_captions"][: world.rank])
            captions = captions[first : first + batch["num_captions"][world.rank]]
            bags = "bags"
        optimizer.zero_grad()
        clips_BD, captions_ND, temperature = parallel(clips[rows], captions)
        loss = mil_nce_loss(
            clips_BD, captions_ND, batch[bags][rows], temperature=temperature,
            excluded_E2=batch["excluded"], symmetric=case.get("symmetric", True),
            positive_weight=case.get("positive_weight", 1), normalize=case.get("normalize", True),
            world=world, reduction=case.get("reduction", "mean"),
            **({"tile": case["tile"]} if "tile" in case else {}),
        )  # fmt: skip
        if loss.ndim:
            weights = torch.from_numpy(np.random.default_rng(step).normal(size=sum(counts)))
            loss = loss @ weights[rows].to(dtype)
        loss.backward()
        optimizer.step()
        losses.append((world.sum(loss) if case.get("reduction") == "none" else loss).item())
    return {"losses": losses, "state": {n: p.detach() for n, p in model.named_parameters()}}


def all_cases(world: World, size: int) -> dict:
    """Every case in both precisions; runs on each rank."""
    return {
        (name, dtype): train(case, world, size, dtype)
        for name, case in CASES.items()
        for dtype in (torch.float64, torch.float32)
    }


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_equal_one_process(size, tmp_path):
    expected = all_cases(World.alone(), size)
    found = run_ranks(all_cases, size, size, tmp_path, seconds=240)
    for (name, dtype), alone in expected.items():
        tolerance = 1e-12 if dtype == torch.float64 else 2e-5
        tolerance *= CASES[name].get("loose", 1)
        for rank, results in enumerate(found):
            result = results[name, dtype]
            where = f"{name}, {dtype}, rank {rank} of {size}"
            assert np.allclose(result["losses"], alone["losses"], rtol=0, atol=tolerance), where
            for parameter, value in alone["state"].items():
                error = (result["state"][parameter] - value).abs().max()
                assert error <= tolerance, f"{where}: {parameter} is off by {error}"


def test_training_moves_every_parameter():
    """The cases above would also agree if nothing moved."""
    for name, case in CASES.items():
        before = dict(Towers(case.get("learn", True)).double().named_parameters())
        after = train(case, World.alone(), 1, torch.float64)["state"]
        moved = [name for name in before if (before[name] - after[name]).abs().max() > 1e-6]
        still = name in ("every bag is empty", "every negative excluded")
        still |= case.get("without_captions", False)  # for one rank is all
        assert moved == ([] if still else list(before)), name
