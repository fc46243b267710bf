"""The same features kept in four ways: how fast they are written, how large, how fast read.

Run     python -m tests.benchmarks.storage [--quick]

A read takes the rows of one clip (5 of them) of a random video, as training does. A streamed tar
has no random access: a pass over it gives one clip of each video. Beside them, decoding those
seconds of a video each time. All files are in the page cache, where one .npy per video looks best.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import webdataset

from pipeline.formats.recipe import Sampling
from pipeline.formats.shard import EncodedVideo, VideoFacts, read_features, read_index
from pipeline.formats.shard_writer import write_shard
from pipeline.pixels import Geometry
from pipeline.video import VideoReader
from tests.benchmarks.decode import make_video
from tests.benchmarks.measure import begin
from tests.examples import recipe

ROWS, DIM, PER_SHARD = 5, 1024, 200
RECIPE = recipe(
    feature_dim=DIM,
    sampling=Sampling(frame_rate=16, frames=16, stride_seconds=1, tail="repeat"),
)
Window = tuple[int, int]
"""Of a video's number, and of its first row."""


def features_of(number: int, length: int) -> np.ndarray:
    """A video's features, float16 [length, DIM]."""
    return np.random.default_rng(number).random((length, DIM), np.float32).astype(np.float16)


def facts(number: int, length: int) -> VideoFacts:
    """A whole video of `length` seconds."""
    return VideoFacts(
        video_id=f"{number:06d}",
        status="encoded",
        reason="",
        error_message="",
        num_frames=16 * length,
        decoded_seconds=float(length),
        declared_seconds=float(length),
        truncated=False,
        bad_packets=0,
        size_bytes=1,
        mtime_ns=1,
    )


class Files:
    """One .npy per video."""

    name = ".npy per video"

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, arrays: list[np.ndarray]) -> None:
        """All videos."""
        for number, array in enumerate(arrays):
            np.save(self.folder / f"{number:06d}.npy", array)

    def read(self, windows: list[Window]) -> Iterator[np.ndarray]:
        """As every loader of such folders does: load, then cut."""
        for number, start in windows:
            yield np.load(self.folder / f"{number:06d}.npy")[start : start + ROWS]


class Mapped(Files):
    """One .npy per video, of which only the rows are read."""

    name = ".npy per video, mapped"

    def write(self, arrays: list[np.ndarray]) -> None:
        """They are there."""

    def read(self, windows: list[Window]) -> Iterator[np.ndarray]:
        """Open, map, copy the rows."""
        for number, start in windows:
            mapped = np.load(self.folder / f"{number:06d}.npy", mmap_mode="r")
            yield np.array(mapped[start : start + ROWS])


class Shards:
    """Tars with an index."""

    name = "ours"

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, arrays: list[np.ndarray]) -> None:
        """Shards of PER_SHARD videos, checksums included."""
        for first in range(0, len(arrays), PER_SHARD):
            videos = (
                EncodedVideo(facts=facts(first + place, len(array)), features=array)
                for place, array in enumerate(arrays[first : first + PER_SHARD])
            )
            name = self.folder / f"{first // PER_SHARD:05d}"
            write_shard(f"{name}.tar", f"{name}.parquet", videos, RECIPE, {})

    def read(self, windows: list[Window]) -> Iterator[np.ndarray]:
        """Rows at their offset; the indexes are read first, and count."""
        indexes = sorted(self.folder.glob("*.parquet"))
        places = [[row.offset for row in read_index(path).rows] for path in indexes]
        with ExitStack() as stack:
            tars = [stack.enter_context(open(path.with_suffix(".tar"), "rb")) for path in indexes]
            for number, start in windows:
                shard, place = divmod(number, PER_SHARD)
                yield read_features(tars[shard].fileno(), places[shard][place], DIM, start, ROWS)


class Streamed(Shards):
    """The same tars, read from front to back."""

    name = "WebDataset streaming"

    def write(self, arrays: list[np.ndarray]) -> None:
        """They are there."""

    def read(self, windows: list[Window]) -> Iterator[np.ndarray]:
        """One clip of each video that passes by, until there are enough."""
        tars = [str(path) for path in sorted(self.folder.glob("*.tar"))]
        starts = [start for _, start in windows]
        while starts:
            for sample in webdataset.WebDataset(tars, shardshuffle=False).decode():
                if not starts:
                    return
                start = starts.pop()
                yield sample["features.npy"][start : start + ROWS]


class Lmdb:
    """One LMDB with an array per video, as some peers have it."""

    name = "LMDB"

    def __init__(self, folder: Path):
        import lmdb

        self.environment = lmdb.open(str(folder / "lmdb"), map_size=1 << 40, readahead=False)

    def write(self, arrays: list[np.ndarray]) -> None:
        """One transaction."""
        with self.environment.begin(write=True) as transaction:
            for number, array in enumerate(arrays):
                transaction.put(f"{number:06d}".encode(), array.tobytes())

    def read(self, windows: list[Window]) -> Iterator[np.ndarray]:
        """Rows out of the mapped value."""
        with self.environment.begin(buffers=True) as transaction:
            for number, start in windows:
                value = transaction.get(f"{number:06d}".encode())
                whole = np.frombuffer(value, np.float16).reshape(-1, DIM)
                yield whole[start : start + ROWS].copy()


def seconds_of(task: Callable[[], object], clock: Callable[[], float]) -> float:
    """What a task takes by a clock."""
    began = clock()
    task()
    return clock() - began


def decode_rate(folder: Path, seconds: int) -> float:
    """Clips a second when the seconds of each are decoded from the video every time."""
    path, count = make_video(folder / "video.mp4", seconds), max(1, seconds // ROWS)
    grid = RECIPE.sampling

    def decode() -> None:
        for _ in range(count):
            reader = VideoReader(path, sampling=grid, geometry=Geometry(224))
            # From the start: cheaper than a seek to the key frame before, on average.
            for _, _ in zip(reader.windows(), range(ROWS), strict=False):
                pass

    return count / seconds_of(decode, time.process_time)


def written(kind: type, root: Path, arrays: list[np.ndarray]) -> Files | Shards | Lmdb:
    """A store that holds the arrays; how fast they got to the disk is printed, by the clock."""
    folder = root / {Mapped: Files, Streamed: Shards}.get(kind, kind).__name__
    new = not folder.exists()
    folder.mkdir(exist_ok=True)
    store = kind(folder)
    seconds = seconds_of(lambda: (store.write(arrays), os.sync()), time.perf_counter)
    if new:
        total = sum(array.nbytes for array in arrays)
        size = sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())
        sys.stdout.write(
            f"  {kind.name:24} written {total / seconds / 1e6:6.0f} MB/s,"
            f" {size / total:.3f} of the numbers' size\n"
        )
    return store


def check(store: Files | Shards | Lmdb, windows: list[Window], arrays: list[np.ndarray]) -> None:
    """A store gives the rows that were asked for; a stream gives those of whoever passes by."""
    if isinstance(store, Streamed):
        return
    for got, (number, start) in zip(store.read(windows), windows, strict=True):
        np.testing.assert_array_equal(got, arrays[number][start : start + ROWS])


def reading(
    stores: list[Files | Shards | Lmdb], windows: list[Window], rounds: int
) -> dict[str, float]:
    """The most clips a second of CPU of each store, read by turns."""
    rates = dict.fromkeys((store.name for store in stores), 0.0)
    for _ in range(rounds):
        for store in stores:
            some = windows[: len(windows) // 4] if isinstance(store, Streamed) else windows
            spent = seconds_of(
                lambda store=store, some=some: sum(1 for _ in store.read(some)), time.process_time
            )
            rates[store.name] = max(rates[store.name], len(some) / spent)
    return rates


def main() -> None:
    """Print the table."""
    quick = begin(argparse.ArgumentParser(description=__doc__)).quick
    # 390 s is the mean length of a HowTo100M video.
    count, length, reads = (50, 390, 500) if quick else (800, 390, 8000)
    arrays = [features_of(number, length) for number in range(count)]
    rng = random.Random(0)
    windows = [(rng.randrange(count), rng.randrange(length - ROWS)) for _ in range(reads)]
    kinds = [Files, Mapped, Shards, Streamed]
    kinds += [Lmdb] if importlib.util.find_spec("lmdb") else []
    total = sum(array.nbytes for array in arrays)
    sys.stdout.write(f"{count} videos of {length} x {DIM} float16, {total / 1e6:.0f} MB\n")
    with tempfile.TemporaryDirectory() as root:
        stores = [written(kind, Path(root), arrays) for kind in kinds]
        for store in stores:
            check(store, windows[:20], arrays)
        rates = reading(stores, windows, rounds=1 if quick else 3)
        rates["decoding the video"] = decode_rate(Path(root), 5 if quick else 20)
    for name, rate in rates.items():
        sys.stdout.write(f"  {name:24} {rate:9.1f} clips/s\n")
    for name, reach in (("WebDataset streaming", 50), (".npy per video", 8)):
        found = rates["ours"] / rates[name]
        sys.stdout.write(f"  ours / {name}  {found:.1f}  (reach {reach})\n")


if __name__ == "__main__":
    main()
