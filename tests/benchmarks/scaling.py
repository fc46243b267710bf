"""Clips a second on 1, 2, .. N ranks of this machine, with the same global batch.

    python -m tests.benchmarks.scaling [--ranks 1 2] [--quick]

Each rank computes on one thread, so that ranks and not threads are compared. Towers and vocabulary
have the released sizes (`released_bags`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.measure import begin, table
from tests.benchmarks.released_bags import make_released
from trainer.monitor import read_metrics

ROOT = Path(__file__).parents[2]


def clips_per_second(root: Path, ranks: int, *, quick: bool) -> tuple[float, str]:
    """Of a whole run, without its first lines; and its last verdict."""
    small = {"global_batch": 32, "word_dim": 8, "text_hidden": 16, "embedding_dim": 8}
    videos, steps, log_every = (20, 4, 1) if quick else (200, 50, 5)
    changes = {"max_steps": steps} | (small if quick else {})
    results = make_released(root, videos_of_shards=(videos, videos), **changes)
    argv = [
        sys.executable, "-m", "trainer.launch", "--processes", str(ranks), "--threads", str(ranks),
        "--", "-m", "trainer.train",
        *results.train_arguments(save_every=10**6, validate_every=0, log_every=log_every),
    ]  # fmt: skip
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    lines = read_metrics(root / "train/metrics.jsonl")[1:]
    return float(np.median([e["clips_per_second"] for e in lines])), lines[-1]["verdict"]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    arguments = begin(parser)
    rows, first = [["ranks", "clips a second", "speed-up", "efficiency", "verdict"]], None
    for ranks in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            speed, verdict = clips_per_second(Path(folder), ranks, quick=arguments.quick)
        first = first or speed / ranks
        rows.append([ranks, speed, speed / first, speed / first / ranks, verdict])
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
