"""A training step with its loading beside the same step without, and beside parsing captions.

    python -m tests.benchmarks.step [--quick]

One process on the CPU, global batch 256, towers and vocabulary of the released sizes
(`released_bags`). Loading and computing go by turns, step by step, in wall time, for a process that
loads beside the step is the point. "Parsing" reads each visited
video's captions from JSON, tokenizes them and finds each clip's nearest ones, as loaders without a
bag cache do every epoch.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.measure import begin, table
from tests.benchmarks.released_bags import (
    BAG,
    MAX_WORDS,
    NUM_WORDS,
    make_released,
    released_settings,
)
from trainer.bag_index import files_of_plan, open_index
from trainer.batch import Batch
from trainer.batch_parts import tower_input
from trainer.data import StepData, load_steps
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.model import build_model
from trainer.preflight import global_exclusion, plan_run

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
CAPTIONS = 110
"""Of a video of HowTo100M, on average."""


class Step:
    """Forward, loss, backward and update of one process."""

    def __init__(self, data: StepData) -> None:
        self.model = build_model(
            data.settings, feature_dim=data.index.feature_dim, num_words=NUM_WORDS,
            max_caption_words=MAX_WORDS,
        )  # fmt: skip
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained)

    def __call__(self, batch: Batch) -> None:
        settings = self.model.settings
        self.optimizer.zero_grad()
        clips, captions, temperature = self.model(*tower_input(batch, None, torch.device("cpu")))
        counts = np.array([[len(clips), len(captions), batch.num_valid]])
        loss = mil_nce_loss(
            clips, captions, batch.bag_idx_BA, temperature=temperature,
            excluded_E2=global_exclusion(settings, batch, counts, World.alone()),
        )  # fmt: skip
        loss.backward()
        self.optimizer.step()


def prepared(root: Path, videos: int, batch: int) -> StepData:
    """The data of one process with a global batch of `batch` clips, opened."""
    make_released(root, videos_of_shards=(videos // 2, videos // 2))
    files = files_of_plan(root / "plan", root / "bags", root / "shards")
    index, settings = open_index(files), released_settings(global_batch=batch)
    plan = plan_run(index, settings, 1)
    return StepData(files, settings, plan, rank=0, size=1, index=index)


def parse_captions(folder: Path, videos: int, vocabulary: dict[str, int]) -> None:
    """What a loader without a cache does for a step's videos."""
    for video in range(videos):
        captions = json.loads((folder / f"{video}.json").read_text())
        start, end = np.array(captions["start"]), np.array(captions["end"])
        ids = [
            [vocabulary[w] for w in WORD.findall(t.casefold()) if w in vocabulary][:MAX_WORDS]
            for t in captions["text"]
        ]
        for middle in (start[3], start[-3]):
            near = np.argsort(np.abs((start + end) / 2 - middle), kind="stable")[:BAG]
            np.array([(ids[k] + [0] * MAX_WORDS)[:MAX_WORDS] for k in near])


def write_captions(folder: Path, videos: int) -> None:
    """A JSON file of captions a video, of ten words each."""
    random = np.random.default_rng(0)
    for video in range(videos):
        start = np.arange(CAPTIONS) * 4.0
        words = random.integers(1, NUM_WORDS, (CAPTIONS, 10))
        text = [" ".join(f"word{w}" for w in row) for row in words]
        content = {"start": start.tolist(), "end": (start + 4).tolist(), "text": text}
        (folder / f"{video}.json").write_text(json.dumps(content))


def by_turns(works: dict[str, Callable[[int], object]], repeats: int) -> dict[str, float]:
    """The middle seconds of each kind of work, done in turns; the first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(repeats + 1):
        for name, work in works.items():
            began = time.perf_counter()
            work(number)
            times[name].append(time.perf_counter() - began)
    return {name: float(np.median(values[1:])) for name, values in times.items()}


def measured(folder: Path, *, videos: int, batch: int, repeats: int) -> list[list]:
    """The rows of the table."""
    data, visits = prepared(folder / "results", videos, batch), batch // 2
    step, steps = Step(data), data.schedule.num_steps
    write_captions(folder, visits)
    vocabulary = {f"word{n}": n for n in range(1, NUM_WORDS + 1)}
    batches = [data[number] for number in range(3)]
    # A loader process goes on to its next batch while the step that took one computes.
    loaded = load_steps(data, 0, workers=1, timeout_seconds=120, pin=False)
    found = by_turns(
        {
            "alone": lambda n: step(batches[n % 3]),
            "load": lambda n: data[(3 + n) % steps],
            "parse": lambda _: parse_captions(folder, visits, vocabulary),
            "beside": lambda _: step(next(loaded)),
        },
        repeats,
    )
    alone = found["alone"]
    rows = [[f"a step of {batch} clips", "ms", "the step alone is of it"]]
    for name, value in (
        ("alone", alone),
        ("and loading from the bag cache, in the rank itself", alone + found["load"]),
        ("and loading in a process beside it", found["beside"]),
        ("and parsing captions, in the rank itself", alone + found["load"] + found["parse"]),
    ):
        rows.append([name, 1e3 * value, alone / value])
    return rows


def main() -> None:
    """Print a table."""
    quick = begin(argparse.ArgumentParser(description=__doc__)).quick
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"videos": 40, "batch": 32} if quick else {"videos": 800, "batch": 256}
        rows = measured(Path(folder), **sizes, repeats=2 if quick else 40)
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
