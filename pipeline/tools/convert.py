"""Bring features that you already have into shards, and shards back into one .npy per video.

Reads   import: a folder of {id}.npy, {id}.mp4.npy, {id}.webm.npy or .npz files with `features`,
        each [T, F], and the videos table; export: a folder of shards
Writes  import: {shard}.tar and {shard}.parquet, as encoding would have, and a line on stdout for
        each file that is refused; export: {id}.npy, float16 [T, F]
Run     python -m pipeline.tools.convert import --features DIR --videos videos.csv \
            --videos-per-shard 256 --output results/shards --encoder s3d --weights s3d.pth \
            --vectors mixed_5c --frame-rate 16 --frames 16 --stride-seconds 1
        python -m pipeline.tools.convert export --shards results/shards --output DIR

Arrays do not say how long their video is. Their T vectors are taken to end in a full window: a
video has (T - 1) · stride + frames frames of the grid. Where the video files are those of the table
and the recipe is that of the config, later runs of `encode` re-use what was imported.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pipeline.cli import run
from pipeline.formats.command_line import CommandLine
from pipeline.formats.feature_files import array_path, find_arrays, read_array, write_array
from pipeline.formats.files import sha256_of_file
from pipeline.formats.manifest import Reason
from pipeline.formats.names import shard_name
from pipeline.formats.recipe import TAILS, Recipe, Sampling
from pipeline.formats.shard import EncodedVideo, IndexRow, VideoFacts, read_index, read_video
from pipeline.formats.shard_writer import write_shard
from pipeline.formats.videos import VideoEntry, read_videos
from pipeline.reuse import FeatureStore
from pipeline.settings import FEATURE_DIMS

logger = logging.getLogger(__name__)


class Importer:
    """Turns rows of the videos table into rows of a shard, and remembers what was refused."""

    def __init__(self, features: Path, recipe: Recipe):
        self.features, self.recipe = features, recipe
        self.num_imported = 0
        self.refused: list[str] = []

    def videos(self, entries: list[VideoEntry]) -> Iterator[EncodedVideo]:
        """The videos of one shard, one in memory at a time."""
        for entry in entries:
            array, reason, message = None, Reason.NONE, ""
            if not entry.path:
                reason, message = Reason.REMOVED, "its path in the videos table is empty"
            else:
                array, reason, message = self._look_up(entry.video_id)
            yield EncodedVideo(facts=self._facts(entry, array, reason, message), features=array)

    def _look_up(self, video_id: str) -> tuple[np.ndarray | None, Reason, str]:
        found = find_arrays(self.features, video_id)
        if not found:
            return None, Reason.MISSING, f"{self.features} has no features of it"
        try:
            if len(found) > 1:
                raise ValueError(f"and {found[1].name} are both there: keep one")
            array = read_array(found[0], self.recipe.feature_dim)
        except ValueError as error:
            message = " ".join(f"{found[0].name} {error}".split())
            self.refused.append(f"{video_id}: {message}")
            return None, Reason.UNREADABLE, message
        self.num_imported += 1
        return array, Reason.NONE, ""

    def _facts(
        self, entry: VideoEntry, array: np.ndarray | None, reason: Reason, message: str
    ) -> VideoFacts:
        sampling = self.recipe.sampling
        count = 0 if array is None else (len(array) - 1) * sampling.stride_frames + sampling.frames
        failed = "rejected" if reason is Reason.REMOVED else "failed"
        try:
            status = os.stat(entry.path)
            size_bytes, mtime_ns = status.st_size, status.st_mtime_ns
        except OSError:
            size_bytes = mtime_ns = -1
        return VideoFacts(
            video_id=entry.video_id,
            status=failed if array is None else "encoded",
            reason=reason.value,
            error_message=message,
            num_frames=count,
            decoded_seconds=count / sampling.frame_rate,
            declared_seconds=count / sampling.frame_rate,
            truncated=False,
            bad_packets=0,
            size_bytes=size_bytes,
            mtime_ns=mtime_ns,
        )


def import_features(
    features: Path, entries: list[VideoEntry], per_shard: int, output: Path, recipe: Recipe
) -> Importer:
    """Write the shards of a videos table from a folder of arrays.

    Raises:
        ValueError: no features are found, or a shard is there already.
    """
    importer = Importer(features, recipe)
    starts = range(0, len(entries), per_shard)
    names = [shard_name(number) for number in range(len(starts))]
    there = [name for name in names if (output / f"{name}.tar").exists()]
    if there:
        raise ValueError(f"{output}/{there[0]}.tar exists: remove it, or name another --output")
    if not any(find_arrays(features, entry.video_id) for entry in entries):
        raise ValueError(f"{features} has no features of any video of the table")
    for name, start in zip(names, starts, strict=True):
        paths = output / f"{name}.tar", output / f"{name}.parquet"
        videos = importer.videos(entries[start : start + per_shard])
        write_shard(*paths, videos, recipe, {"imported": True})
        # Without a second name, a workflow that deletes outputs would delete the only copy.
        FeatureStore(*paths, recipe).finish()
    return importer


def export_features(shards: Path, output: Path) -> int:
    """Write {key}.npy for every encoded video of the shards in a folder; return how many.

    Raises:
        FileNotFoundError: there is no shard.
        ValueError: a shard is damaged, or two hold the same video.
    """
    indexes = sorted(shards.glob("*.parquet"))
    if not indexes:
        raise FileNotFoundError(f"no shard in {shards}: name the folder with --shards")
    shard_of: dict[str, str] = {}
    count = 0
    for path in indexes:
        with open(path.with_suffix(".tar"), "rb") as file:
            for row in read_index(path).rows:
                if not row.encoded:
                    continue
                if (other := shard_of.setdefault(row.video_id, path.stem)) != path.stem:
                    raise ValueError(
                        f"{row.video_id!r} is in shard {other} and in {path.stem}: one of them is"
                        " of an earlier table or plan; remove its .tar and .parquet"
                    )
                count += _export(row, file, output)
    return count


def _export(row: IndexRow, tar: BinaryIO, output: Path) -> bool:
    """Write one video's features; False where no file can bear its name."""
    target = array_path(output, row.video_id)
    if target is None:
        logger.warning("%r is left out: no file can have that name", row.video_id)
        return False
    try:
        write_array(target, read_video(tar.fileno(), row))
    except ValueError as error:
        raise ValueError(f"{tar.name}: {error}") from None
    return True


def recipe_of(arguments: argparse.Namespace) -> Recipe:
    """What the command line says of how the features were made."""
    feature_dim = arguments.feature_dim or FEATURE_DIMS.get(arguments.vectors)
    if feature_dim is None:
        raise ValueError(f"--feature-dim is needed: {arguments.vectors!r} may have any size")
    weights = arguments.weights
    return Recipe(
        encoder=arguments.encoder,
        weights_sha256=sha256_of_file(weights) if os.path.isfile(weights) else weights,
        output=arguments.vectors,
        feature_dim=feature_dim,
        frame_size=arguments.frame_size,
        sampling=Sampling(
            frame_rate=arguments.frame_rate,
            frames=arguments.frames,
            stride_seconds=arguments.stride_seconds,
            tail=arguments.tail,
        ),
        precision=arguments.precision,
        feature_version=arguments.feature_version,
    )


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = CommandLine(
        prog="python -m pipeline.tools.convert",
        description="Features as one file per video in, shards out; or the other way round.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    into = commands.add_parser("import", help="from one file per video into shards")
    into.add_argument("--features", type=Path, required=True, help="folder of .npy and .npz files")
    into.add_argument("--videos", type=Path, required=True, help="the videos table")
    into.add_argument("--videos-per-shard", type=int, required=True, help="as in the config")
    into.add_argument("--output", type=Path, required=True, help="folder of the shards")
    into.add_argument("--encoder", required=True, help="the network's name, such as s3d")
    into.add_argument("--weights", required=True, help="its weights: the file, a sha256 or a name")
    into.add_argument("--vectors", required=True, help="mixed_5c, embedding, or another name")
    into.add_argument("--feature-dim", type=int, help="F, where --vectors does not tell it")
    into.add_argument("--frame-rate", type=float, required=True, help="frames a second")
    into.add_argument("--frames", type=int, required=True, help="frames of one vector")
    into.add_argument("--stride-seconds", type=float, required=True, help="between two vectors")
    into.add_argument("--tail", choices=TAILS, default="repeat", help="what filled the last window")
    into.add_argument("--frame-size", type=int, default=224, help="pixels on a side")
    into.add_argument("--precision", default="float32")
    into.add_argument("--feature-version", type=int, default=1)
    out = commands.add_parser("export", help="from shards into one .npy per video")
    out.add_argument("--shards", type=Path, required=True, help="folder of the shards")
    out.add_argument("--output", type=Path, required=True, help="folder of the .npy files")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Command line of the tool."""
    arguments = parse(argv)
    if arguments.command == "export":
        count = export_features(arguments.shards, arguments.output)
        logger.info("%d videos written to %s", count, arguments.output)
        return
    if arguments.videos_per_shard < 1:
        raise ValueError(f"--videos-per-shard is {arguments.videos_per_shard}, must be at least 1")
    entries = read_videos(arguments.videos)
    importer = import_features(
        arguments.features,
        entries,
        arguments.videos_per_shard,
        arguments.output,
        recipe_of(arguments),
    )
    for line in importer.refused:
        sys.stdout.write(f"refused {line}\n")
    left = len(entries) - importer.num_imported - len(importer.refused)
    counts = importer.num_imported, len(importer.refused), left
    logger.info("%d videos imported, %d refused, %d without features", *counts)


if __name__ == "__main__":
    run(main)
