"""Clip reads from shards beside WebDataset and .npy files; order and start of a million videos.

    python -m tests.benchmarks.loader [--quick]

A read is the rows of one clip. WebDataset streams whole shards, and of a video takes one clip, as
its users do; the .npy files are one a video, loaded whole and cut. All files are in the page cache.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import webdataset

from pipeline.formats.bags import TRAIN, write_bags
from pipeline.formats.plan import PlannedVideo, write_planned_videos
from pipeline.formats.shard import EncodedVideo, VideoFacts, read_index
from pipeline.formats.shard_writer import write_shard
from tests.benchmarks.measure import begin, measure, table
from tests.synthetic_bags import RECIPE, _bags, train_settings
from trainer.bag_index import files_of_plan, open_index
from trainer.batch import FeatureReader
from trainer.data import StepData
from trainer.order import epoch_order
from trainer.preflight import plan_run

SECONDS, CLIP = 400, 4
DIM = RECIPE.feature_dim


def write_features(root: Path, num_videos: int, rows: int, dim: int) -> None:
    """A shard of random features, and the same as one .npy file a video."""
    random = np.random.default_rng(0)
    videos = []
    (root / "npy").mkdir(parents=True)
    for number in range(num_videos):
        facts = VideoFacts(
            video_id=f"v{number}", status="encoded", reason="", error_message="",
            num_frames=4 * rows, decoded_seconds=rows, declared_seconds=rows, truncated=False,
            bad_packets=0, size_bytes=1, mtime_ns=1,
        )  # fmt: skip
        features = random.normal(size=(rows, dim)).astype(np.float16)
        np.save(root / f"npy/v{number}.npy", features)
        videos.append(EncodedVideo(facts=facts, features=features))
    recipe = replace(RECIPE, feature_dim=dim)
    write_shard(root / "a.tar", root / "a.parquet", videos, recipe, provenance={})


def reads(way: str, root: Path, num_videos: int, rows: int, dim: int):
    """Work for `measure`: clips at random places; the run returns how many."""
    random = np.random.default_rng(1)
    count = 4000
    picks = random.integers(0, num_videos, count), random.integers(0, rows - CLIP, count)
    places = list(zip(*(p.tolist() for p in picks), strict=True))
    reader = FeatureReader()
    offsets = [row.offset for row in read_index(root / "a.parquet").rows]

    def shard() -> int:
        for video, start in places:
            reader.read(root / "a.tar", offsets[video], dim, start, CLIP)
        return count

    def files() -> int:
        for video, start in places[: count // 8]:
            np.load(root / f"npy/v{video}.npy")[start : start + CLIP].copy()
        return count // 8

    def stream() -> int:
        data = webdataset.WebDataset(str(root / "a.tar"), shardshuffle=False).decode()
        return sum(1 for s in data if len(s["features.npy"][:CLIP]))

    return {"shard": shard, "files": files, "stream": stream}[way]


def reading(root: Path, num_videos: int, rows: int, dim: int) -> list[list]:
    """Clips a second of each way; the first turn warms the page cache."""
    ways = {"shard": "shard, pread", "files": ".npy a video", "stream": "WebDataset"}
    works = [partial(reads, way, root, num_videos, rows, dim) for way in ways]
    speeds = [row["result"] / row["seconds"] for row in measure(*works, repeats=2)]
    found = [["reads", "clips a second", "shards are times as fast"]]
    for name, speed in zip(ways.values(), speeds, strict=True):
        found.append([name, speed, speeds[0] / speed])
    return found


def order(num_videos: int) -> None:
    """Plan an epoch of shards of 1,000 videos."""
    per = 1000
    videos = [np.arange(s * per, (s + 1) * per) for s in range(num_videos // per)]

    def work() -> int:
        return len(epoch_order(0, 0, videos, 16))

    return work


def many_bags(root: Path, shards: int, per: int) -> None:
    """Bag files of `shards` × `per` videos, all the same but for their names."""
    random = np.random.default_rng(2)
    ids = [f"v{n}" for n in range(per)]
    topics = [np.full(8, n % 10) for n in range(per)]
    rows = [type("R", (), {"offset": n * 8 * DIM * 2, "num_vectors": 8})() for n in range(per)]
    metadata = {
        "recipe": RECIPE.to_dict(), "recipe_identity": RECIPE.identity, "tar_sha256": "",
        "vocabulary_sha256": "", "vocabulary_size": 40, "max_caption_words": 5,
        "tar_bytes": per * 8 * DIM * 2,
    }  # fmt: skip
    bags = _bags(ids, ["train"] * per, topics, rows, metadata, random)
    write_bags(root / "bags/first.npz", bags)
    first, tar = root / "bags/first.npz", root / "shards/first"
    tar.parent.mkdir()
    with open(tar, "wb") as file:
        file.truncate(metadata["tar_bytes"])
    for number in range(shards):
        name = f"{number:05d}"
        write_planned_videos(root / f"plan/{name}.tsv", [PlannedVideo("v", "v.mp4", "train", 1, 1)])
        (root / f"bags/{name}.npz").hardlink_to(first)
        (root / f"shards/{name}.tar").hardlink_to(tar)


def start(root: Path) -> object:
    """From nothing to the first batch."""

    def work() -> int:
        files = files_of_plan(root / "plan", root / "bags", root / "shards")
        index = open_index(files)
        settings = train_settings(global_batch=256, epochs=1)
        plan = plan_run(index, settings, 1)
        data = StepData(files, settings, plan, rank=0, size=1, index=index)
        int(np.minimum(index.clip_counts()[data.epoch_videos(0)], 2).sum())
        index.clips_of_shards(TRAIN)
        return len(data[0].clip_ids_B)

    return work


def main() -> None:
    """Print two tables."""
    quick = begin(argparse.ArgumentParser(description=__doc__)).quick
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        num_videos, dim = (50, 256) if quick else (400, 1024)
        write_features(root, num_videos, SECONDS, dim)
        sys.stdout.write(table(reading(root, num_videos, SECONDS, dim)) + "\n")
        videos, shards = (12_000, 5) if quick else (1_200_000, 1000)
        many_bags(root / "many", shards, 1000)
        planned, started = measure(partial(order, videos), partial(start, root / "many"))
        rows = [["", "videos", "seconds", "GB"]]
        rows.append(["order of an epoch", videos, planned["seconds"], planned["gigabytes"]])
        rows.append([
            "start to first batch", shards * 1000, started["seconds"], started["gigabytes"]
        ])  # fmt: skip
        sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
