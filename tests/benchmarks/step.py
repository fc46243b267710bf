"""A training step with its loading beside the same step without, and beside parsing captions.

    PYTHONPATH=.:tests python tests/benchmarks/step.py [--quick]

One process on the CPU, global batch 256. "Parsing" reads each visited video's captions from JSON,
tokenizes them and finds each clip's nearest ones, as loaders without a bag cache do every epoch.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measure import table
from synthetic_bags import NUM_WORDS, make_results, train_settings

from trainer.bag_index import files_of_plan, open_index
from trainer.data import StepData
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.model import build_model
from trainer.parts import tower_input
from trainer.preflight import global_exclusion, plan_run

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
CAPTIONS = 110
"""Of a video of HowTo100M, on average."""


def prepared(root: Path, quick: bool) -> tuple[StepData, torch.nn.Module]:
    """Data of a few hundred videos, and towers of usual width."""
    results = make_results(root, videos_of_shards=(150, 150) if quick else (400, 400))
    files = files_of_plan(root / "plan", root / "bags", root / "shards")
    index = open_index(files)
    settings = train_settings(global_batch=256, embedding_dim=256, text_hidden=512, word_dim=128)
    data = StepData(files, settings, plan_run(index, settings, 1), rank=0, size=1, index=index)
    model = build_model(
        settings, feature_dim=index.feature_dim, num_words=NUM_WORDS, max_caption_words=5
    )
    assert results.root == root
    return data, model


def compute(model: torch.nn.Module, batch, optimizer: torch.optim.Optimizer) -> None:
    """Forward, loss, backward, update."""
    settings = model.settings
    optimizer.zero_grad()
    clips, captions, temperature = model(*tower_input(batch, None, torch.device("cpu")))
    counts = np.array([[len(clips), len(captions), batch.num_valid]])
    loss = mil_nce_loss(
        clips, captions, batch.bag_idx_BA, temperature=temperature,
        excluded_E2=global_exclusion(settings, batch, counts, World.alone()),
    )  # fmt: skip
    loss.backward()
    optimizer.step()


def parse_captions(folder: Path, videos: int, vocabulary: dict[str, int]) -> None:
    """What a loader without a cache does for a step's videos."""
    for video in range(videos):
        captions = json.loads((folder / f"{video}.json").read_text())
        start, end = np.array(captions["start"]), np.array(captions["end"])
        ids = [
            [vocabulary[w] for w in WORD.findall(t.casefold()) if w in vocabulary][:20]
            for t in captions["text"]
        ]
        for middle in (start[3], start[-3]):
            near = np.argsort(np.abs((start + end) / 2 - middle), kind="stable")[:5]
            np.array([(ids[k] + [0] * 20)[:20] for k in near])


def write_captions(folder: Path, videos: int) -> None:
    """A JSON file of captions a video."""
    random = np.random.default_rng(0)
    for video in range(videos):
        start = np.arange(CAPTIONS) * 4.0
        words = random.integers(1, NUM_WORDS, (CAPTIONS, 5))
        text = [" ".join(f"word{w}" for w in row) for row in words]
        content = {"start": start.tolist(), "end": (start + 4).tolist(), "text": text}
        (folder / f"{video}.json").write_text(json.dumps(content))


def seconds(work, repeats: int) -> float:
    """The middle time of several."""
    times = []
    for number in range(repeats):
        began = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small inputs, seconds")
    quick = parser.parse_args().quick
    repeats = 5 if quick else 20
    with tempfile.TemporaryDirectory() as folder:
        data, model = prepared(Path(folder) / "results", quick)
        optimizer = torch.optim.AdamW(model.parameters())
        batch, steps = data[0], data.schedule.num_steps
        write_captions(Path(folder), 128)
        vocabulary = {f"word{n}": n for n in range(1, NUM_WORDS + 1)}
        compute(model, batch, optimizer)
        bare = seconds(lambda _: compute(model, batch, optimizer), repeats)
        load = seconds(lambda n: data[n % steps], repeats)
        parsing = seconds(lambda _: parse_captions(Path(folder), 128, vocabulary), repeats)
    rows = [["a step of 256 clips", "ms", "of the step alone"]]
    for name, value in (
        ("alone", bare), ("loading from the bag cache, in the rank", load),
        ("parsing captions instead", parsing), ("with the cache, 0 workers", bare + load),
        ("without it, 0 workers", bare + load + parsing),
    ):  # fmt: skip
        rows.append([name, 1e3 * value, value / bare])
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
