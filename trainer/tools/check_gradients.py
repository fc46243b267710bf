"""Compare the gradient that several ranks compute with that of one process, on your own machines.

Reads   nothing
Writes  a table to standard output: for each parameter the length of its gradient over the ranks
        divided by that of one process, and the cosine between the two; and how fast ranks exchange,
        with a warning where the gradients would take much of a step
By hand `python -m trainer.tools.check_gradients --help`; on several ranks
        `python -m trainer.launch --nodes 1 --processes 2 --threads 2 -- -m
        trainer.tools.check_gradients`

Every rank knows the whole random batch, takes an uneven part of it, and computes the gradient of
the whole by itself as well. 1.000000 and 1.000000 everywhere is right; a length of 1/ranks or ranks
is the usual mistake, and a cosine below 1 means missing terms. Ends with status 1 where it is off.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.formats.command_line import CommandLine
from trainer import distributed
from trainer.cli import run, speak_as
from trainer.distributed import World
from trainer.gradient_cache import GradientCache, Range
from trainer.loss import mil_nce_loss
from trainer.towers import TextTower, VideoTower, caption_words

FEATURES, ROWS, WORDS, BAG, LENGTH = 48, 3, 200, 4, 7
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
LARGE_SHARE = 0.2
"""Of a step's time; beyond it the exchange cannot hide behind the backward pass for long."""

logger = logging.getLogger(__name__)


class Towers(nn.Module):
    """Both towers and a trained temperature, small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.video = VideoTower(FEATURES, 32, "mean", "projection", "layer")
        self.text = TextTower(WORDS, 24, 64, 32, norm="layer")
        self.log_temperature = nn.Parameter(torch.tensor(-2.0))

    def forward(self, features_BTF, mask_BT, words):
        """Clips [B, D], captions [N, D], temperature."""
        clips, captions = self.video(features_BTF, mask_BT), self.text(words)
        unit = {"dim": 1}
        return (
            functional.normalize(clips, **unit),
            functional.normalize(captions, **unit),
            self.log_temperature.exp(),
        )


class Batch:
    """A global batch, the same on every rank, and the parts that ranks take of it."""

    def __init__(self, num_clips: int, device: torch.device, dtype: torch.dtype) -> None:
        random = np.random.default_rng(1)
        features = random.normal(size=(num_clips, ROWS, FEATURES))
        self.features = torch.from_numpy(features).to(device, dtype)
        self.mask = torch.from_numpy(random.random((num_clips, ROWS)) < 0.7).to(device)
        self.mask[:, 0] = True
        self.ids_NL = random.integers(0, WORDS + 1, (num_clips * BAG, LENGTH))
        self.bags = np.arange(num_clips * BAG).reshape(num_clips, BAG)
        self.bags[random.random(self.bags.shape) < 0.3] = -1
        self.bags[0] = -1
        self.device = device
        clip, caption = random.integers(0, num_clips, (2, num_clips))
        drawn = {(i, k * BAG) for i, k in zip(clip.tolist(), caption.tolist(), strict=True)}
        pairs = sorted((i, k) for i, k in drawn if k not in self.bags[i])
        self.excluded = np.array(pairs, np.int64).reshape(-1, 2)

    def part(self, world: World) -> Range:
        """The clips of a rank: the later, the more."""
        steps = np.arange(world.size + 1)
        cuts = len(self.bags) * (steps * steps + steps) // (world.size * (world.size + 1))
        clips = slice(*cuts[world.rank : world.rank + 2].tolist())
        return Range(clips, slice(clips.start * BAG, clips.stop * BAG))

    def inputs(self, part: Range) -> tuple:
        """The towers' arguments for some clips and captions."""
        words = caption_words(self.ids_NL[part.captions])
        words = type(words)(*(value.to(self.device) for value in words))
        return self.features[part.clips], self.mask[part.clips], words

    def loss_of(self, part: Range, world: World):
        """The loss as a function of that part's embeddings."""
        own = self.bags[part.clips]
        bags = torch.from_numpy(np.where(own >= 0, own - part.captions.start, -1))

        def loss(clips, captions, temperature):
            return mil_nce_loss(
                clips, captions, bags, temperature=temperature, excluded_E2=self.excluded,
                world=world,
            )  # fmt: skip

        return loss


def gradients(batch: Batch, world: World, dtype: torch.dtype, *, chunk: int) -> dict:
    """Each parameter's gradient over the ranks of `world`; `chunk` > 0 uses the gradient cache."""
    model = Towers().to(batch.device, dtype)
    parallel = distributed.parallel(model, world)
    part = batch.part(world)
    loss_of = batch.loss_of(part, world)
    if chunk:

        def inputs(_: Batch, piece: Range) -> tuple:
            def shifted(inner: slice, outer: slice) -> slice:
                return slice(inner.start + outer.start, inner.stop + outer.start)

            clips, captions = piece.clips, piece.captions
            return batch.inputs(Range(shifted(clips, part.clips), shifted(captions, part.captions)))

        cache = GradientCache(
            model, parallel, inputs, chunk=chunk, context=nullcontext, device=batch.device
        )
        num_clips, num_captions = (side.stop - side.start for side in (part.clips, part.captions))
        cache.step(batch, num_clips, num_captions, loss_of)
    else:
        loss_of(*parallel(*batch.inputs(part))).backward()
    return {name: _gradient(p).double() for name, p in model.named_parameters()}


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None  # every one takes part
    return parameter.grad.detach()


def compare(found: dict, expected: dict, world: World) -> list[tuple[str, float, float]]:
    """(parameter, ratio of lengths, cosine); of all ranks the worst."""
    rows = []
    for name, right in expected.items():
        gradient = found[name]
        ratio = gradient.norm() / right.norm()
        cosine = (gradient * right).sum() / (gradient.norm() * right.norm())
        off = torch.stack([(ratio - 1).abs(), 1 - cosine])
        worst = world.largest(torch.stack([ratio, -ratio, *off]))
        ratio = worst[0] if (worst[0] - 1).abs() >= (-worst[1] - 1).abs() else -worst[1]
        rows.append((name, float(ratio), float(1 - worst[3])))
    return rows


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = CommandLine(
        prog="python -m trainer.tools.check_gradients",
        description="Nothing in, a table of gradients over ranks against one process out.",
    )
    parser.add_argument("--backend", default="auto", help="nccl, gloo or auto")
    parser.add_argument("--clips", type=int, default=60, help="clips of the global batch")
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument(
        "--megabytes", type=int, default=64, help="gradients of a step, as the trainer's log says"
    )
    parser.add_argument(
        "--step-seconds", type=float, default=1.0, help="of a step, as the trainer's log says"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Compare, print, fail where it is off."""
    arguments = parse(argv)
    world = distributed.start(arguments.backend, timeout_seconds=120)
    speak_as(world.rank)
    torch.backends.cuda.matmul.allow_tf32 = False
    dtype = getattr(torch, arguments.dtype)
    batch = Batch(arguments.clips, world.device, dtype)
    expected = gradients(batch, World.alone(world.device.type), dtype, chunk=0)
    off = report(batch, world, dtype, expected)
    rate = distributed.exchange_rate(world, arguments.megabytes)
    tell(world, f"all-reduce: {rate:.2f} GB/s\n")
    warning = slow_exchange(arguments.megabytes, rate, arguments.step_seconds)
    if warning and world.first:
        logger.warning("%s", warning)
    distributed.stop(world)
    if off:
        raise ValueError(f"the gradient of {', '.join(off)} is not that of one process")


def report(batch: Batch, world: World, dtype: torch.dtype, expected: dict) -> list[str]:
    """Print a table of each way to compute a step; the names of what is off."""
    off = []
    tell(world, f"{world.size} ranks, {world.device.type}, {str(dtype).removeprefix('torch.')}\n")
    for way, chunk in (("whole", 0), ("in chunks", 7)):
        tell(world, f"{way:34} {'ratio':>10} {'cosine':>10}\n")
        for name, ratio, cosine in compare(
            gradients(batch, world, dtype, chunk=chunk), expected, world
        ):
            wrong = not (abs(ratio - 1) <= TOLERANCE[dtype] and 1 - cosine <= TOLERANCE[dtype])
            off += [f"{name} ({way})"] * wrong
            tell(world, f"  {name:32} {ratio:10.6f} {cosine:10.6f}{'  OFF' * wrong}\n")
    return off


def slow_exchange(megabytes: float, rate: float, step_seconds: float) -> str | None:
    """A warning where gradients of that size, at `rate` GB/s, would eat the step; else None."""
    seconds = megabytes / 1e3 / rate
    if seconds <= LARGE_SHARE * step_seconds:
        return None
    return (
        f"{megabytes:g} MB of gradients take {seconds:.3g} s at {rate:.2f} GB/s,"
        f" {100 * seconds / step_seconds:.0f} % of a step of {step_seconds:g} s: name a faster"
        " network in run.train.network_interface, set train.comm_hook: fp16_compress or"
        " train.freeze_words, or raise train.global_batch"
    )


def tell(world: World, text: str) -> None:
    """Rank 0 says it."""
    if world.first:
        sys.stdout.write(text)
        sys.stdout.flush()


if __name__ == "__main__":
    run(main)
