"""Write a feature shard (`pipeline.formats.shard`): its tar, then its index.

A module of its own because it is the only one that needs webdataset, which brings torch: the stages
that only read indexes start without them.
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from webdataset import TarWriter

from pipeline.formats.arrays import read_header
from pipeline.formats.files import sha256_of_file, whole_file
from pipeline.formats.names import sample_key
from pipeline.formats.parquet import write_table
from pipeline.formats.recipe import Recipe
from pipeline.formats.shard import (
    DTYPE,
    FEATURES_SUFFIX,
    SCHEMA,
    VERSION,
    EncodedVideo,
    IndexRow,
    VideoFacts,
)


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
