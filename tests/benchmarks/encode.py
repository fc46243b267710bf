"""What encoding costs beside the plain ways of doing it, as ratios of one run.

Run     python -m tests.benchmarks.encode [--quick]

Prints S3D on this machine's CPU against the plain module; a whole encode against the slower of its
two sides alone; and what adding 1 % of videos costs of a full run. `tests.benchmarks.decode` prints
the figures of decoding, `tests.benchmarks.storage` those of reading.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipeline.decode_pool import decode_all
from pipeline.decoding import Job, Window
from pipeline.encode_shard import encode_rows
from pipeline.encoders.batches import WindowBatch
from pipeline.encoders.interface import load_encoder
from pipeline.encoders.machine import keep_memory
from pipeline.encoders.s3d import S3D
from pipeline.encoders.s3d_folded import computes_bfloat16
from pipeline.encoders.s3d_weights import randomize
from pipeline.formats.manifest import ManifestRow
from pipeline.formats.recipe import PRESETS
from pipeline.formats.shard import read_index
from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings
from pipeline.shard_encoder import EncodeRun
from pipeline.video import VideoReader
from tests.benchmarks.decode import make_video
from tests.benchmarks.measure import begin, measure, say
from tests.small_shards import SETTINGS, accepted, outputs_in
from tests.stand_ins import Means
from tests.videos import numbered, steady, write_video

S3D_SETTINGS = dataclasses.replace(SETTINGS, sampling="milnce-3.2s", frame_size=224)


# S3D against the plain module


def plain_module() -> Callable[[torch.Tensor], torch.Tensor]:
    """The module as its users run it: float32, contiguous clips in [0, 1], no gradient."""
    network = S3D(space_to_depth=True)
    randomize(network, 0)
    network.eval()

    def encode(windows_BTHWC: torch.Tensor) -> torch.Tensor:
        clips_BCTHW = windows_BTHWC.permute(0, 4, 1, 2, 3).float().contiguous() / 255
        with torch.no_grad():
            return network(clips_BCTHW)["mixed_5c"]

    return encode


def s3d_work(kind: str, windows_BTHWC: np.ndarray):
    """Work for `measure`: the features, float32 [B, F]."""
    if kind != "plain":
        keep_memory()  # as the encode stage does
    if kind.startswith("plain"):
        encode = plain_module()
    else:
        encode = load_encoder(dataclasses.replace(S3D_SETTINGS, precision=kind), "cpu")
    clips = torch.from_numpy(windows_BTHWC)
    encode(clips[:1])
    return lambda: encode(clips).float().numpy()


def s3d_figures(folder: Path, *, quick: bool) -> None:
    """Clips a second, memory and cosine of each precision against the plain module."""
    count, size, rounds = (1, 64, 1) if quick else (4, 224, 3)
    path = make_video(folder / "s3d.mp4", 4 * count)
    reader = VideoReader(path, sampling=PRESETS["milnce-3.2s"], geometry=Geometry(size))
    windows = np.stack([window for window, _ in zip(reader.windows(), range(count), strict=False)])
    kinds = ["plain", "plain, memory kept", "float32"]
    kinds += ["bfloat16"] if computes_bfloat16() else []
    works = [partial(s3d_work, kind, windows) for kind in kinds]
    found = dict(zip(kinds, measure(*works, repeats=rounds), strict=True))
    features, usual = found["plain"]["result"], found["plain"]["seconds"]
    say(f"S3D, 32x{size}x{size}, batch {count}, clips a second of CPU:")
    for kind, row in found.items():
        told = f"  {kind}: {count / row['seconds']:.2f} clips/s, {row['gigabytes']:.2f} GB more"
        if not kind.startswith("plain"):
            own = row["result"]
            lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(features, axis=1)
            same = ((own * features).sum(axis=1) / lengths).min()
            ratio = usual / row["seconds"]
            told += f", cosine {same:.6f}, ours / plain {ratio:.2f}  (reach 4, cosine 0.9999)"
        say(told)
    if "bfloat16" not in found:
        say("  bfloat16: this processor does not compute it")


# A whole encode against its two sides


def wall(work: Iterator) -> tuple[float, list]:
    """Seconds to exhaust an iterator, and what it gave."""
    began = time.perf_counter()
    result = list(work)
    return time.perf_counter() - began, result


def network_alone(settings: EncodeSettings, windows: list[np.ndarray], batch: int) -> Iterator:
    """The network on batches of windows that are there."""
    filled = WindowBatch(load_encoder(settings, "cpu"), batch)
    for window in windows:
        filled.add(window, [])
    filled.run()
    yield from ()


def both_sides(folder: Path, *, quick: bool) -> None:
    """Wall time of encoding many videos, of decoding them alone, and of the network alone."""
    count, seconds, batch = (2, 2, 2) if quick else (64, 20, 4)
    settings = dataclasses.replace(SETTINGS, sampling="howto100m-1s", frame_size=64)
    paths = [make_video(folder / f"{k}.mp4", seconds) for k in range(count)]
    rows = [accepted(path, path.stem, float(seconds)) for path in paths]
    jobs = [Job(number, row.path, row.duration_seconds) for number, row in enumerate(rows)]
    torch.set_num_threads(1)
    grid, geometry = settings.grid, Geometry(settings.frame_size)

    def decoded() -> Iterator[np.ndarray]:
        for event in decode_all(jobs, grid, geometry, workers=1, waiting_windows=2 * batch):
            if isinstance(event, Window):
                yield event.pixels

    decode_seconds, windows = wall(decoded())
    network_seconds, _ = wall(network_alone(settings, windows, batch))

    def encoded() -> Iterator:
        encoder = load_encoder(settings, "cpu")
        outputs = outputs_in(folder / "sides")
        encode_rows(rows, settings, encoder, outputs, EncodeRun(batch=batch, workers=1))
        yield from ()

    encode_seconds, _ = wall(encoded())
    slower = max(decode_seconds, network_seconds)
    say(
        f"encode {count} videos of {seconds} s, {len(windows)} clips: {encode_seconds:.1f} s;"
        f" decode alone {decode_seconds:.1f} s, network alone {network_seconds:.1f} s\n"
        f"  slower side / encode  {slower / encode_seconds:.2f}  (reach 0.9)"
    )


# One per cent more videos


def encode_counting(rows: list[ManifestRow], folder: Path) -> tuple[int, float, dict[str, int]]:
    """Windows that were decoded and encoded, seconds, and the crc32 of every video's features."""
    encoder = Means()
    tar, index = outputs_in(folder)
    began = time.perf_counter()
    encode_rows(rows, SETTINGS, encoder, (tar, index), EncodeRun(batch=8, workers=0))
    spent = time.perf_counter() - began
    return encoder.seen, spent, {row.video_id: row.crc32 for row in read_index(index).rows}


def one_per_cent(folder: Path, *, quick: bool) -> None:
    """Encode a shard, add 1 % of videos, encode again."""
    count = 10 if quick else 100
    rows = []
    for k in range(count + max(1, count // 100)):
        path = folder / f"{k}.mp4"
        write_video(path, steady(50), draw=lambda i, k=k: numbered(500 * k % 60000 + i))
        rows.append(accepted(path, f"{k}", 2.0))
    full, full_seconds, before = encode_counting(rows[:count], folder / "grown")
    added, added_seconds, after = encode_counting(rows, folder / "grown")
    same = sum(after[video_id] == crc32 for video_id, crc32 in before.items())
    say(
        f"{count} videos, then {len(rows) - count} more: {full} clips, then {added};"
        f" {full_seconds:.2f} s, then {added_seconds:.2f} s; {same} of {count} others unchanged\n"
        f"  added / full  {added / full:.3f}  (reach 0.02)"
    )


def main() -> None:
    """Print the figures."""
    quick = begin(argparse.ArgumentParser(description=__doc__)).quick
    keep_memory()  # for what runs in this process, as the encode stage does
    for figure in (s3d_figures, both_sides, one_per_cent):
        with tempfile.TemporaryDirectory() as folder:
            figure(Path(folder), quick=quick)


if __name__ == "__main__":
    main()
