"""What limits the speed of a run, in one line, from where the time of its steps went.

Letters: W ranks, P parts of a step (`trainer.stopwatch.PARTS`).
"""

from __future__ import annotations

import math
import os
import resource
import sys
from dataclasses import dataclass

import numpy as np
import torch

from trainer.distributed import World
from trainer.stopwatch import PARTS

MUCH = 0.15
"""A share of a step that is worth a word."""
_COMPUTING = ("transfer", "video", "text", "loss", "backward", "optimizer", "other")


@dataclass(slots=True)
class StepTimes:
    """Steps and clips of this rank since the last line."""

    steps: int = 0
    clips: int = 0

    def add(self, *, clips: int) -> None:
        """Count a step."""
        self.steps, self.clips = self.steps + 1, self.clips + clips

    def line(self, world: World) -> dict:
        """What the ranks' steps since the last line took; call on all ranks of a step alike.

        Mean seconds of a step for each part (`seconds_*`, mean over ranks), each rank's clips a
        second, the largest peak of memory, how busy the GPUs are in percent (mean over ranks, left
        out where no rank can tell), and the verdict. Without any step, nothing.
        """
        parts, steps, clips = world.watch.summary(), self.steps, self.clips
        self.steps = self.clips = 0
        if not steps:
            return {}
        own = [parts.get(name, 0.0) for name in PARTS]
        own += [clips, peak_memory_gb(world.device), gpu_utilization(world.device)]
        row = torch.tensor([own], dtype=torch.float64)
        rows = world.gather_rows(row, [1] * world.size).numpy()
        seconds_WP = rows[:, : len(PARTS)]
        totals_W = np.maximum(seconds_WP.sum(axis=1), 1e-9)
        means = seconds_WP.mean(axis=0) / steps
        clips_W, peak_W, busy_W = rows[:, len(PARTS) :].T
        busy_W = busy_W[np.isfinite(busy_W)]
        return {
            **{f"seconds_{name}": float(value) for name, value in zip(PARTS, means, strict=True)},
            "clips_per_second_ranks": [round(float(v), 2) for v in clips_W / totals_W],
            "peak_memory_gb": float(peak_W.max()),
            **({"gpu_utilization": float(busy_W.mean())} if len(busy_W) else {}),
            "verdict": verdict(seconds_WP),
        }


def verdict(seconds_WP: np.ndarray) -> str:
    """One line: what the largest avoidable share of a step is, and what would lower it."""
    totals_W = np.maximum(seconds_WP.sum(axis=1), 1e-9)
    share = dict(zip(PARTS, (seconds_WP / totals_W[:, None]).mean(axis=0).tolist(), strict=True))
    network = share["gather"] + share["exchange"]
    slow = max(share["data"], network, share["waiting"])
    if slow < MUCH:
        return _compute_bound(share)
    if slow == share["data"]:
        return (
            f"data-bound: {share['data']:.0%} of the step waits for data; raise run.train.workers,"
            " or bring the shards to a faster disk"
        )
    if slow == share["waiting"]:
        column = PARTS.index("waiting")
        slowest = int((seconds_WP[:, column] / totals_W).argmin())
        return (
            f"uneven: {share['waiting']:.0%} of the step waits for the slowest rank, mostly rank"
            f" {slowest}; look at its machine, its disk and what else runs there"
        )
    return (
        f"network-bound: {network:.0%} of the step waits for exchanges (gather"
        f" {share['gather']:.0%}, gradients {share['exchange']:.0%}); raise train.global_batch, or"
        " name a faster run.train.network_interface"
    )


def _compute_bound(share: dict[str, float]) -> str:
    largest = sorted(_COMPUTING, key=lambda name: -share[name])[:3]
    parts = ", ".join(f"{name} {share[name]:.0%}" for name in largest)
    computing = sum(share[name] for name in _COMPUTING)
    return f"compute-bound: {computing:.0%} of the step computes ({parts}); add ranks to be faster"


def peak_memory_gb(device: torch.device) -> float:
    """The most memory so far: the GPU's, or without one this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def gpu_utilization(device: torch.device) -> float:
    """Percent of the last moments, up to a second, in which the GPU computed; NaN: not known."""
    if device.type != "cuda":
        return math.nan
    try:
        from pynvml import NVMLError
    except ImportError:  # the extra `gpu` is not installed
        return math.nan
    try:
        return float(torch.cuda.utilization(device))
    except (NVMLError, RuntimeError):  # a part of a card (MIG), a driver that does not say
        return math.nan


def usable_cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
