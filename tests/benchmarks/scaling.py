"""Clips a second on 1, 2, .. N ranks of this machine, with the same global batch.

    python -m tests.benchmarks.scaling [--ranks 1 2] [--quick]

It is `trainer.tools.scaling` on towers and a vocabulary of the released sizes (`released_bags`).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.benchmarks.measure import begin
from tests.benchmarks.released_bags import make_released
from trainer.tools import scaling


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="+", default=["1", "2"])
    arguments = begin(parser)
    small = {"global_batch": 32, "word_dim": 8, "text_hidden": 16, "embedding_dim": 8}
    videos, steps = (20, "10") if arguments.quick else (200, "50")
    with tempfile.TemporaryDirectory() as folder:
        results = make_released(
            Path(folder), videos_of_shards=(videos, videos), **(small if arguments.quick else {})
        )
        scaling.main([*results.train_arguments(), "--ranks", *arguments.ranks, "--steps", steps])


if __name__ == "__main__":
    main()
