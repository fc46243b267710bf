"""A shard of three short videos to encode, and what came of it."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from pipeline.encode_shard import encode_rows
from pipeline.formats.files import write_json
from pipeline.formats.manifest import ManifestRow, write_manifest
from pipeline.formats.shard import read_index
from pipeline.pixels import Geometry
from pipeline.reuse import RETRY_ALL
from pipeline.shard_encoder import EncodeRun
from pipeline.video import VideoReader
from tests.examples import encode_settings, manifest_row
from tests.stand_ins import Means
from tests.videos import numbered, steady, write_video

SETTINGS = encode_settings(
    sampling={"frame_rate": 8, "frames": 4, "stride_seconds": 0.25, "tail": "repeat"}
)


def accepted(path: Path, video_id: str, seconds: float) -> ManifestRow:
    found = path.stat()
    return dataclasses.replace(
        manifest_row(video_id),
        path=str(path),
        duration_seconds=seconds,
        size_bytes=found.st_size,
        mtime_ns=found.st_mtime_ns,
    )


def write_originals(folder: Path) -> Path:
    """Videos of 1, 2 and 3 s whose frames bear different numbers."""
    for k in (1, 2, 3):
        write_video(folder / f"{k}.mp4", steady(25 * k), draw=lambda i, k=k: numbered(1000 * k + i))
    return folder


def rows_of(originals: Path, copies: Path) -> list[ManifestRow]:
    """A manifest: a rejected video, and copies of three that are good."""
    folder = shutil.copytree(originals, copies)
    good = [accepted(folder / f"{k}.mp4", f"v.{k}", float(k)) for k in (1, 2, 3)]
    return [manifest_row("bad", "empty", "0 bytes"), *good]


def outputs_in(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    return folder / "00000.tar", folder / "00000.parquet"


def encode(rows, folder, *, settings=SETTINGS, encoder=None, batch=4, workers=0, retry=RETRY_ALL):
    """Encode and return how many windows the encoder saw, and the bytes of both outputs."""
    encoder = encoder or Means()
    outputs = outputs_in(folder)
    run = EncodeRun(batch=batch, workers=workers, retry=retry)
    encode_rows(rows, settings, encoder, outputs, run)
    return encoder.seen, [path.read_bytes() for path in outputs]


def arguments_for(folder: Path, rows: list[ManifestRow]) -> list[str]:
    """Write what the command reads, and return its arguments."""
    write_manifest(folder / "manifest.parquet", rows)
    write_json(folder / "encode.json", dataclasses.asdict(SETTINGS))
    tar, index = outputs_in(folder / "out")
    arguments = ["--manifest", str(folder / "manifest.parquet")]
    arguments += ["--settings", str(folder / "encode.json"), "--output", str(tar)]
    return [*arguments, "--index", str(index), "--batch", "2", "--threads", "1"]


def windows_of(row: ManifestRow) -> np.ndarray:
    geometry = Geometry(frame_size=SETTINGS.frame_size)
    reader = VideoReader(row.path, sampling=SETTINGS.grid, geometry=geometry)
    return np.stack([window.copy() for window in reader.windows()])


def statuses(folder: Path) -> dict[str, tuple[str, str]]:
    return {r.video_id: (r.status, r.reason) for r in read_index(folder / "00000.parquet").rows}
