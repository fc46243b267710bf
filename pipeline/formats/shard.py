"""A feature shard: a WebDataset tar and, beside it, an index that makes its rows addressable.

`{shard}.tar` holds `{key}.features.npy` (float16 [T, F]) and `{key}.json` for each encoded video;
any WebDataset reader can stream it. `{shard}.parquet` has a row for every planned video, also those
that failed, with the byte offset of its array, so that a trainer reads a clip's rows with one
`os.pread` and never unpacks the tar. `pipeline.formats.shard_writer` writes both.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from pipeline.formats.names import again
from pipeline.formats.parquet import read_metadata, read_rows
from pipeline.formats.recipe import Recipe

VERSION = "shard-1"
FEATURES_SUFFIX = "features.npy"
DTYPE = np.dtype("<f2")
_SURELY_THERE = 1 << 24
"""Bytes for which room may be made in vain; nearly all reads are of fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFacts:
    """What encoding one video found out, whether or not it gave features."""

    video_id: str
    status: str
    """`encoded` or `failed`; `rejected` when the manifest already refused it."""
    reason: str
    error_message: str
    num_frames: int
    """Grid frames from the clock's zero to the decoded end."""
    decoded_seconds: float
    """The end of the last decoded frame on the caption clock."""
    declared_seconds: float
    truncated: bool
    bad_packets: int
    size_bytes: int
    mtime_ns: int
    packets: int = 0
    """Of the video stream; `bad_packets` of them did not decode, or are missing from the file."""
    missing_fraction: float = 0.0
    """How much of the declared length no decoded frame covers."""
    decoder: str = ""
    """`cpu` or `nvdec`; empty: nothing decoded, or by a version that did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedVideo:
    """One video's features on their way into a shard; `features` is None unless encoded."""

    facts: VideoFacts
    features: np.ndarray | None
    """[T, F] float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow(VideoFacts):
    """A video's facts and where its features lie in the tar."""

    key: str
    offset: int
    """Byte of the tar at which the array's first number stands; 0 when there is none."""
    length: int
    """Bytes of the array's numbers: num_vectors × feature_dim × 2."""
    num_vectors: int
    feature_dim: int
    crc32: int
    """Of the array's bytes."""

    @property
    def encoded(self) -> bool:
        """Whether the tar holds features of this video."""
        return self.status == "encoded"


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The index of one shard."""

    rows: list[IndexRow]
    recipe: Recipe
    provenance: dict
    tar_bytes: int
    tar_sha256: str


SCHEMA = {
    field.name: {"str": "string", "float": "float64", "int": "int64", "bool": "bool"}[
        str(field.type)
    ]
    for field in fields(IndexRow)
}


def read_index(path: str | Path) -> ShardIndex:
    """Read a shard's index; a foreign or cut file raises `ValueError`."""
    rows, metadata = read_rows(path, SCHEMA, version=VERSION, later={"decoder": ""})
    facts = _facts(path, metadata)
    return ShardIndex(
        rows=[IndexRow(**row) for row in rows],
        recipe=facts["recipe"],
        provenance=facts["provenance"],
        tar_bytes=facts["tar_bytes"],
        tar_sha256=facts["tar_sha256"],
    )


def read_index_facts(path: str | Path) -> dict[str, str | int]:
    """`recipe_identity`, `tar_bytes` and `tar_sha256` of a shard's index, without its rows.

    Raises:
        ValueError: a foreign or cut file.
    """
    facts = _facts(path, read_metadata(path, version=VERSION))
    identity = facts["recipe"].identity
    return {key: facts[key] for key in ("tar_bytes", "tar_sha256")} | {"recipe_identity": identity}


def _facts(path: str | Path, metadata: dict) -> dict:
    """What an index says of its shard, the recipe read."""
    kinds = {"provenance": dict, "tar_bytes": int, "tar_sha256": str}
    try:
        facts = {"recipe": Recipe.from_dict(metadata["recipe"])}
        facts |= {name: metadata[name] for name in kinds}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} has damaged metadata ({error!r}): {again(path)}") from None
    if odd := [name for name, kind in kinds.items() if not isinstance(facts[name], kind)]:
        raise ValueError(f"{path} has damaged metadata ({odd[0]}): {again(path)}")
    return facts


def read_features(
    descriptor: int, offset: int, feature_dim: int, start: int, count: int
) -> np.ndarray:
    """Read rows [start, start + count) of the array at `offset` of an open tar: [count, F] float16.

    Raises:
        ValueError: the file ends before the rows do, or there are no such rows.
    """
    row_bytes = feature_dim * DTYPE.itemsize
    first, wanted = offset + start * row_bytes, count * row_bytes
    possible = 0 <= first < 2**63 and wanted >= 0
    if wanted > _SURELY_THERE:  # `pread` makes room before it reads: is there so much at all?
        possible = possible and wanted <= os.fstat(descriptor).st_size
    data = os.pread(descriptor, wanted, first) if possible else b""
    if not possible or len(data) != wanted:
        raise ValueError(
            f"a shard is shorter than its index says: {len(data)} of {wanted} bytes at"
            f" offset {first}"
        )
    return np.frombuffer(data, dtype=DTYPE).reshape(count, feature_dim)


def read_video(descriptor: int, row: IndexRow) -> np.ndarray:
    """All rows of a video in an open tar: [num_vectors, feature_dim] float16.

    Raises:
        ValueError: the file is shorter, or holds other bytes, than its index says.
    """
    array = read_features(descriptor, row.offset, row.feature_dim, 0, row.num_vectors)
    if zlib.crc32(array.tobytes()) != row.crc32:
        raise ValueError(f"the features of {row.video_id!r} are damaged")
    return array
