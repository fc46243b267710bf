"""Train some steps of your own run on 1, 2, 4 .. ranks of this machine: how much faster is each?

Reads   what the training would
Writes  a table and a sentence to standard output; the runs live in temporary folders
By hand `python -m trainer.tools.scaling --ranks 1 2 4 8 ...` with the arguments of the training

Every run has the same global batch and one thread a rank, so that ranks and not threads are
compared. It knows one machine alone: for several, compare the clips_per_second in the metrics of
short runs with --stop-at.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import read_json, write_json
from trainer.arguments import at_least, parse
from trainer.cli import run
from trainer.monitor import read_metrics
from trainer.rehearse import command_line
from trainer.stopwatch import PARTS
from trainer.verdict import usable_cores

LOG_EVERY = 5
GOOD = 0.9
"""An efficiency that leaves nothing to look for."""
SMALL = 0.01
"""The share of a step below which a part gets no column."""
CURES = {
    "data": "raise run.train.workers, or bring the shards to a faster disk",
    "gather": "raise train.global_batch",
    "exchange": "raise train.global_batch",
    "waiting": "look at what else runs on this machine: some ranks are slower than others",
}
COMPUTING = "more ranks make this part no shorter: they share cores or memory, or it is too small"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Speed:
    """Of a run on some ranks."""

    ranks: int
    clips_per_second: float
    parts: dict[str, float]
    """Seconds of a step in each part, the median of its lines."""
    verdict: str

    def beside(self, first: Speed) -> tuple[float, float]:
        """How many times as fast as one rank, by `first`'s speed, and that for each rank."""
        faster = self.clips_per_second / first.clips_per_second * first.ranks
        return faster, faster / self.ranks


def measure(arguments: argparse.Namespace, ranks: int, steps: int) -> Speed:
    """Train so many steps on so many ranks of this machine.

    Raises:
        ValueError: the run failed.
    """
    with tempfile.TemporaryDirectory(prefix="bagpipe-scaling-") as folder:
        root = Path(folder)
        settings = read_json(arguments.settings)
        settings |= {"max_steps": steps, "epochs": max(steps, settings["epochs"])}
        write_json(root / "train.json", settings)
        more = ["--log-every", str(LOG_EVERY), "--validate-every", "0", "--profile", "0:0"]
        status = subprocess.run(command_line(arguments, root, ranks, more), check=False).returncode
        if status:
            raise ValueError(
                f"the run on {ranks} ranks ended with exit status {status}; its lines above say why"
            )
        return speed_of(ranks, read_metrics(root / "metrics.jsonl"))


def speed_of(ranks: int, lines: list[dict]) -> Speed:
    """From the metrics of a run, without the first line, whose steps start and warm up."""
    lines = lines[1:]
    return Speed(
        ranks,
        float(np.median([line["clips_per_second"] for line in lines])),
        {name: float(np.median([line[f"seconds_{name}"] for line in lines])) for name in PARTS},
        lines[-1]["verdict"],
    )


def table(speeds: list[Speed]) -> str:
    """In Markdown, the parts in milliseconds of a step."""
    shown = [
        name
        for name in PARTS
        if any(speed.parts[name] > SMALL * sum(speed.parts.values()) for speed in speeds)
    ]
    rows = [["ranks", "clips/s", "speed-up", "efficiency", "step ms", *shown]]
    for speed in speeds:
        faster, efficiency = speed.beside(speeds[0])
        seconds = [sum(speed.parts.values()), *(speed.parts[name] for name in shown)]
        rows.append(
            [
                str(speed.ranks), f"{speed.clips_per_second:.4g}", f"{faster:.2f}",
                f"{efficiency:.0%}", *map(_milliseconds, seconds),
            ]
        )  # fmt: skip
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def limit(speeds: list[Speed]) -> str:
    """One sentence: what keeps the most ranks from being so many times as fast."""
    first, last = speeds[0], speeds[-1]
    if last.ranks == first.ranks:
        return f"Ranks {last.ranks}: {last.verdict}."
    faster, efficiency = last.beside(first)
    begin = f"{last.ranks} ranks are {faster:.2f} times as fast as one"
    if efficiency >= GOOD:
        return f"{begin}: nothing limits them, and more ranks should be faster still."
    lost = {name: last.parts[name] - first.parts[name] * first.ranks / last.ranks for name in PARTS}
    worst = max(lost, key=lambda name: lost[name])
    return (
        f"{begin}; of the {_milliseconds(sum(lost.values()))} ms that a step takes too long"
        f" {_milliseconds(lost[worst])} ms are {worst}: {CURES.get(worst, COMPUTING)}."
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}" if seconds < 0.1 else f"{1000 * seconds:.0f}"


def check_ranks(wanted: list[int] | None, backend: str) -> list[int]:
    """The numbers of ranks in order; by default 1, 2, 4 .. up to the GPUs, else the cores.

    Raises:
        ValueError: more ranks than GPUs.
    """
    gpus = 0 if backend == "gloo" else torch.cuda.device_count()
    places = gpus or usable_cores()
    ranks = sorted(set(wanted or [2**n for n in range(places.bit_length())]))
    if ranks[-1] > places and gpus:
        raise ValueError(
            f"--ranks {ranks[-1]}: this machine has {gpus} GPUs and a rank needs one; allowed: 1 to"
            f" {gpus}, or --backend gloo to measure the CPU"
        )
    if ranks[-1] > places:
        logger.warning("%d ranks share %d cores here, as they would in training", ranks[-1], places)
    return ranks


def main(argv: list[str] | None = None) -> None:
    """Print a table and what limits."""
    parser = CommandLine(
        prog="python -m trainer.tools.scaling",
        description="The arguments of a training in, a table of its speed on some numbers of ranks"
        " out. All other arguments are those of trainer.train.",
    )
    add = parser.add_argument
    add("--ranks", type=at_least(1), nargs="+", help="numbers to try: 1, 2, 4 .. if not given")
    add("--steps", type=at_least(2 * LOG_EVERY), default=50, help="of each run")
    own, rest = parser.parse_known_args(argv)
    arguments = parse(rest)
    ranks = check_ranks(own.ranks, arguments.backend)
    speeds = [measure(arguments, number, own.steps) for number in ranks]
    sys.stdout.write(f"{table(speeds)}\n\n{limit(speeds)}\n")


if __name__ == "__main__":
    run(main)
