"""Loading keeps the memory of a process flat, however many batches it makes."""

from __future__ import annotations

import dataclasses
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.bags import TRAIN, Bags, read_bags, write_bags
from tests.synthetic_bags import RECIPE, Results, files_of, make_results, train_settings
from trainer.bag_index import open_index
from trainer.batch import Batch
from trainer.data import StepData, load_steps
from trainer.order import schedule

VIDEOS, EACH, BATCHES = 2_000, 100, 2_000


def own_megabytes() -> float:
    """Memory of this process and of its loaders that no file stands behind."""
    total, own = 0.0, os.getpid()
    loaders = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    for process in (own, *loaders):
        with open(f"/proc/{process}/status") as file:
            line = next(line for line in file if line.startswith("RssAnon"))
        total += int(line.split()[1]) / 1000
    return total


def many_captions(root) -> None:
    """One shard of 200,000 captions; its features are zeros."""
    make_results(root, videos_of_shards=(2,))
    path = root / "bags/00000.npz"
    captions = np.arange(VIDEOS * EACH)
    video = (captions // EACH).astype("<i4")
    second = (captions % EACH).astype("<f8")
    arrays = {
        "vid_paths": np.array([f"v{n}".encode() for n in range(VIDEOS)]),
        "feature_offset": np.arange(VIDEOS, dtype="<i8") * EACH * RECIPE.feature_dim * 2,
        "feature_count": np.full(VIDEOS, EACH, "<i4"),
        "video_split": np.full(VIDEOS, TRAIN, "|i1"),
        "cap_ids": (1 + captions[:, None] % np.array([7, 11, 13])).astype("<i4"),
        "cap_lens": np.full(len(captions), 3, "<i4"),
        "cap_hash": captions.astype("<i8"),
        "bag_idx": np.stack([captions, np.where(second > 0, captions - 1, -1)], 1).astype("<i4"),
        "clip_feature_start": second.astype("<i4"),
        "clip_feature_count": np.ones(len(captions), "<i4"),
    }
    for owner in ("cap", "clip"):
        arrays |= {f"{owner}_video": video, f"{owner}_start": second, f"{owner}_stop": second + 1}
    tar = root / "shards/00000.tar"
    with open(tar, "wb") as file:
        file.truncate(VIDEOS * EACH * RECIPE.feature_dim * 2)
    metadata = read_bags(path).metadata | {"tar_bytes": tar.stat().st_size}
    write_bags(path, Bags(**arrays, metadata=metadata))
    assert {field.name for field in dataclasses.fields(Bags)} == {*arrays, "metadata"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 1])
def test_memory_is_flat_over_2000_batches_of_200000_captions(tmp_path, workers):
    many_captions(tmp_path)
    files = files_of(Results(tmp_path))
    settings = train_settings(global_batch=16, epochs=20)
    index = open_index(files)
    plan = schedule(VIDEOS, settings.visits_per_step, settings.epochs, BATCHES)
    data = StepData(files, settings, plan, rank=0, size=1, index=index)
    sizes, batches = [], load_steps(data, 0, workers=workers, timeout_seconds=60, pin=False)
    for number, batch in enumerate(batches):
        assert isinstance(batch, Batch)
        if number % 200 == 199:
            gc.collect()
            sizes.append(own_megabytes())
    assert len(sizes) == 10
    assert sizes[-1] - sizes[1] < max(2.0, 0.01 * sizes[1]), sizes
