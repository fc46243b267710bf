"""Check feature shards against their indexes, and say how each fault is mended.

Reads   results/shards/{shard}.tar and .parquet, and the plan where it is named
Writes  nothing; a line on stdout for each fault, and exit status 1 if there is any
Run     python -m pipeline.tools.verify --shards results/shards --plan results/plan

Every byte is read: sizes, sha256, crc32, places, shapes, finite numbers, descriptions, and that all
shards have one recipe. With --fast only names, sizes and places are compared, which takes a moment.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.cli import run
from pipeline.formats.arrays import read_header
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import sha256_of_file
from pipeline.formats.names import again, sample_key
from pipeline.formats.plan import read_planned_videos
from pipeline.formats.recipe import Recipe
from pipeline.formats.shard import DTYPE, FEATURES_SUFFIX, IndexRow, ShardIndex, read_index

BLOCK = tarfile.BLOCKSIZE

logger = logging.getLogger(__name__)


def check_shard(tar: Path, *, fast: bool) -> tuple[ShardIndex | None, list[str]]:
    """The index of a shard, None where it cannot be read, and the faults of both files."""
    try:
        index = read_index(tar.with_suffix(".parquet"))
    except (FileNotFoundError, ValueError, KeyError) as error:
        return None, [f"no good index: {error}"]
    faults = [*_faults_of_rows(index)]
    if not tar.exists():
        return index, [*faults, "the tar is missing"]
    size = tar.stat().st_size
    if size != index.tar_bytes:
        faults.append(f"{size} bytes, its index says {index.tar_bytes}")
    elif not fast and sha256_of_file(tar) != index.tar_sha256:
        faults.append("its sha256 is not what its index says")
    return index, [*faults, *_faults_of_tar(tar, index, fast=fast)]


def _faults_of_rows(index: ShardIndex) -> Iterator[str]:
    """What an index says against itself."""
    times = Counter(row.video_id for row in index.rows)
    for video_id, count in times.items():
        if count > 1:
            yield f"its index lists {video_id!r} {count} times"
    for row in index.rows:
        if row.key != sample_key(row.video_id):
            yield f"its index gives {row.video_id!r} the key {row.key!r}"
        if row.status not in ("encoded", "failed", "rejected"):
            yield f"its index gives {row.video_id!r} the unknown status {row.status!r}"
        vectors, dim = row.num_vectors, row.feature_dim
        if not row.encoded:
            expected = (0, 0, index.recipe.feature_dim, 0)
        else:
            shape = index.recipe.sampling.num_vectors(row.num_frames), index.recipe.feature_dim
            expected = (row.offset, *shape, shape[0] * shape[1] * DTYPE.itemsize)
        if (row.offset, vectors, dim, row.length) != expected:
            yield f"its index gives {row.video_id!r} {row.length} bytes for {vectors} × {dim}"


def _faults_of_tar(path: Path, index: ShardIndex, *, fast: bool) -> Iterator[str]:
    """What the members of a tar are, against the index."""
    rows = {row.key: row for row in index.rows if row.encoded}
    missing = {f"{key}.{suffix}": None for key in rows for suffix in (FEATURES_SUFFIX, "json")}
    end = 0
    with open(path, "rb") as file:
        try:
            with tarfile.open(fileobj=file) as tar:
                for member in tar:
                    end = member.offset_data + -(-member.size // BLOCK) * BLOCK
                    key, _, suffix = member.name.partition(".")
                    if member.name not in missing or not member.isreg():
                        yield f"it holds {member.name!r}, which is foreign to it or there twice"
                        continue
                    del missing[member.name]
                    check = _fault_of_features if suffix == FEATURES_SUFFIX else _fault_of_json
                    yield from check(file, member, rows[key], index.recipe, fast)
        except (tarfile.TarError, ValueError, OverflowError, OSError) as error:
            yield f"it is no whole tar: {error}"
        yield from _faults_of_end(file, end)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield f"it lacks {next(iter(missing))!r}{more}"


def _faults_of_end(file: io.BufferedReader, end: int) -> Iterator[str]:
    """A tar ends in two blocks of zeros; a cut on the border of a member leaves no other trace."""
    file.seek(min(max(0, end), os.fstat(file.fileno()).st_size))
    rest = file.read(1 << 20)
    if len(rest) < 2 * BLOCK:
        yield "the two blocks of zeros at its end are missing: it was cut"
    elif rest.strip(b"\0") or file.read(1):
        yield f"something stands behind its last member, from byte {end}"


def _fault_of_features(
    file: io.BufferedReader, member: tarfile.TarInfo, row: IndexRow, recipe: Recipe, fast: bool
) -> Iterator[str]:
    """Whether an array is the one that the index means."""
    whose = f"the features of {row.video_id!r}"
    file.seek(member.offset_data)
    head = io.BytesIO(file.read(min(member.size, 4096)))
    try:
        shape, fortran, dtype = read_header(head)
    except ValueError as error:
        yield f"{whose} are no .npy: {error}"
        return
    expected = (row.num_vectors, recipe.feature_dim), False, DTYPE
    if (shape, fortran, dtype) != expected:
        yield f"{whose} are {dtype} {shape}, expected {DTYPE} {expected[0]}"
    place = member.offset_data + head.tell(), member.size - head.tell()
    if place != (row.offset, row.length):
        yield f"{whose} lie at {place}, its index says {(row.offset, row.length)}"
    elif not fast:
        file.seek(row.offset)
        data = file.read(min(row.length, os.fstat(file.fileno()).st_size))
        if zlib.crc32(data) != row.crc32:
            yield f"{whose} have another crc32 than its index says"
        elif not np.isfinite(np.frombuffer(data, DTYPE)).all():
            yield f"{whose} hold NaN or infinity"


def _fault_of_json(
    file: io.BufferedReader, member: tarfile.TarInfo, row: IndexRow, recipe: Recipe, fast: bool
) -> Iterator[str]:
    """Whether a description is that of the index's video, recipe and times."""
    if fast:
        return
    file.seek(member.offset_data)
    try:
        told = json.loads(file.read(min(member.size, os.fstat(file.fileno()).st_size)))
        starts, stops = recipe.sampling.spans(row.num_frames)
        same = (
            told["video_id"] == row.video_id
            and told["recipe_identity"] == recipe.identity
            and told["start_seconds"] == starts.tolist()
            and told["end_seconds"] == stops.tolist()
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        same = False
    if not same:
        yield f"{member.name!r} does not describe {row.video_id!r} as its index does"


def faults_of_plan(plan: Path, index: ShardIndex) -> list[str]:
    """Whether a shard lists the videos that `plan` gives it, in its order."""
    planned = [video.video_id for video in read_planned_videos(plan)]
    listed = [row.video_id for row in index.rows]
    if planned == listed:
        return []
    odd = sorted(set(planned) ^ set(listed)) or ["the order"]
    return [f"its index and {plan} differ in their videos, first in {odd[0]!r}"]


def faults_of_recipes(indexes: dict[Path, ShardIndex]) -> Iterator[tuple[Path, str]]:
    """The shards whose recipe is not that of most."""
    counts = Counter(index.recipe.identity for index in indexes.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    most = next(i.recipe.to_dict() for i in indexes.values() if i.recipe.identity == usual)
    for tar, index in indexes.items():
        if index.recipe.identity != usual:
            own = index.recipe.to_dict()
            keys = [f"{key} ({own[key]}, not {most[key]})" for key in most if own[key] != most[key]]
            yield tar, f"its recipe is not that of most shards: {', '.join(keys)}"


def verify(shards: Path, plan: Path | None, *, fast: bool) -> Iterator[tuple[Path, str]]:
    """Yield (tar, fault) for every fault of the shards in a folder, of those of `plan` if given.

    Raises:
        FileNotFoundError: there is no shard.
    """
    folder, suffixes = (shards, ("*.tar", "*.parquet")) if plan is None else (plan, ("*.tsv",))
    names = sorted({path.stem for suffix in suffixes for path in folder.glob(suffix)})
    if not names:
        raise FileNotFoundError(f"no shard in {folder}: name the folder with --shards")
    indexes: dict[Path, ShardIndex] = {}
    for name in names:
        tar = shards / f"{name}.tar"
        index, faults = check_shard(tar, fast=fast)
        if index is not None:
            indexes[tar] = index
            faults += [] if plan is None else faults_of_plan(plan / f"{name}.tsv", index)
        yield from ((tar, fault) for fault in faults)
    yield from faults_of_recipes(indexes)
    encoded = sum(row.encoded for index in indexes.values() for row in index.rows)
    logger.info("%d shards, %d videos with features", len(names), encoded)


def main(argv: list[str] | None = None) -> None:
    """Command line of the tool."""
    parser = CommandLine(
        prog="python -m pipeline.tools.verify",
        description="Feature shards go in; a line for each fault comes out, with its remedy.",
    )
    parser.add_argument("--shards", type=Path, required=True, help="the folder of the shards")
    parser.add_argument("--plan", type=Path, help="check the shards that this folder plans")
    parser.add_argument("--fast", action="store_true", help="read no features")
    arguments = parser.parse_args(argv)
    faulty = 0
    for tar, fault in verify(arguments.shards, arguments.plan, fast=arguments.fast):
        faulty += 1
        sys.stdout.write(f"{tar}: {' '.join(fault.split())}; {again(tar)}\n")
    if faulty:
        sys.exit(1)
    sys.stdout.write("no fault\n")


if __name__ == "__main__":
    run(main)
