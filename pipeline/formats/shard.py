"""A feature shard: a WebDataset tar and, beside it, an index that makes its rows addressable.

`{shard}.tar` holds `{key}.features.npy` (float16 [T, F]) and `{key}.json` for each encoded video;
any WebDataset reader can stream it. `{shard}.parquet` has a row for every planned video, also those
that failed, with the byte offset of its array, so that a trainer reads a clip's rows with one
`os.pread` and never unpacks the tar.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from webdataset import TarWriter

from pipeline.formats.arrays import read_header
from pipeline.formats.files import sha256_of_file, whole_file
from pipeline.formats.names import again, sample_key
from pipeline.formats.parquet import read_metadata, read_rows, write_table
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


def write_shard(
    tar_path: str | Path,
    index_path: str | Path,
    videos: Iterable[EncodedVideo],
    recipe: Recipe,
    provenance: dict,
) -> None:
    """Write a shard's tar, then its index: an index therefore always has its tar.

    Raises:
        ValueError: features of a wrong shape, or numbers that are not finite.
    """
    facts = []
    with whole_file(tar_path) as scratch:
        with open(scratch, "wb") as file, TarWriter(file, mtime=0) as tar:
            for video in videos:
                facts.append(video.facts)
                if video.features is not None:
                    tar.write(_sample(video, recipe))
        places = _places(scratch)
        tar_bytes, tar_sha256 = scratch.stat().st_size, sha256_of_file(scratch)
    rows = [asdict(_index_row(fact, places, recipe)) for fact in facts]
    metadata = {
        "recipe": recipe.to_dict(),
        "provenance": provenance,
        "tar_bytes": tar_bytes,
        "tar_sha256": tar_sha256,
    }
    write_table(index_path, SCHEMA, rows, version=VERSION, metadata=metadata)


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


def _sample(video: EncodedVideo, recipe: Recipe) -> dict:
    """One WebDataset sample: the array's bytes and what a reader must know to use them."""
    facts, features = video.facts, video.features
    expected = (recipe.sampling.num_vectors(facts.num_frames), recipe.feature_dim)
    if features is None or features.shape != expected or features.dtype != DTYPE:
        found = "none" if features is None else f"{features.dtype} {features.shape}"
        raise ValueError(f"features of {facts.video_id!r} are {found}, expected {DTYPE} {expected}")
    if not np.isfinite(features).all():
        raise ValueError(f"features of {facts.video_id!r} hold NaN or infinity")
    starts, stops = recipe.sampling.spans(facts.num_frames)
    description = {
        "video_id": facts.video_id,
        "recipe": recipe.to_dict(),
        "recipe_identity": recipe.identity,
        "start_seconds": starts.tolist(),
        "end_seconds": stops.tolist(),
        "valid_frames": recipe.sampling.valid_frames(facts.num_frames).tolist(),
        "source": {"size_bytes": facts.size_bytes, "mtime_ns": facts.mtime_ns},
    }
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(features), allow_pickle=False)
    return {
        "__key__": sample_key(facts.video_id),
        FEATURES_SUFFIX: buffer.getvalue(),
        "json": json.dumps(description, sort_keys=True).encode("utf-8"),
    }


def _places(tar_path: Path) -> dict[str, tuple[int, int, int]]:
    """For each key the offset, length and crc32 of its array's numbers in the tar."""
    places = {}
    with tarfile.open(tar_path) as tar, open(tar_path, "rb") as file:
        for member in tar:
            key, suffix = member.name.split(".", 1)
            if suffix != FEATURES_SUFFIX:
                continue
            file.seek(member.offset_data)
            data = file.read(member.size)
            header_bytes = _npy_header_bytes(data)
            numbers = data[header_bytes:]
            places[key] = (member.offset_data + header_bytes, len(numbers), zlib.crc32(numbers))
    return places


def _npy_header_bytes(data: bytes) -> int:
    stream = io.BytesIO(data)
    read_header(stream)
    return stream.tell()


def _index_row(
    facts: VideoFacts, places: dict[str, tuple[int, int, int]], recipe: Recipe
) -> IndexRow:
    key = sample_key(facts.video_id)
    offset, length, crc32 = places.get(key, (0, 0, 0))
    return IndexRow(
        **asdict(facts),
        key=key,
        offset=offset,
        length=length,
        num_vectors=length // (recipe.feature_dim * DTYPE.itemsize),
        feature_dim=recipe.feature_dim,
        crc32=crc32,
    )
