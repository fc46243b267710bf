"""The embeddings of one shard's clips: a `.npy` of the vectors, and a table that says what each is.

Letters: C clips, D numbers of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.formats.arrays import read_npy
from pipeline.formats.files import whole_file
from pipeline.formats.parquet import read_table, write_table

VERSION = "embeddings-1"
DTYPE = np.dtype("<f4")
SCHEMA = {"video_id": "string", "start_seconds": "float64", "end_seconds": "float64"}
TAGS = ("model_sha256", "bags_digest", "recipe_identity", "embedding_dim")


@dataclass(frozen=True, slots=True)
class ClipEmbeddings:
    """Row i of the vectors is clip i of the shard's bags."""

    vectors_CD: np.ndarray
    """[C, D] float32, to compare by dot product."""
    video_ids: list[str]
    starts: list[float]
    ends: list[float]
    tags: dict
    """`TAGS`: what they were made from; other values make them stale."""


def write_embeddings(path: Path, index_path: Path, embeddings: ClipEmbeddings) -> None:
    """Write the vectors, then the table: a table therefore always has its vectors.

    Raises:
        ValueError: shapes do not fit, or a number is not finite.
    """
    vectors_CD = np.ascontiguousarray(embeddings.vectors_CD, DTYPE)
    expected = (len(embeddings.video_ids), embeddings.tags["embedding_dim"])
    if vectors_CD.shape != expected or not np.isfinite(vectors_CD).all():
        raise ValueError(f"{path}: {vectors_CD.shape} finite numbers needed, expected {expected}")
    with whole_file(path) as scratch, open(scratch, "wb") as file:
        np.lib.format.write_array(file, vectors_CD, allow_pickle=False)
    columns = zip(embeddings.video_ids, embeddings.starts, embeddings.ends, strict=True)
    rows = [dict(zip(SCHEMA, row, strict=True)) for row in columns]
    write_table(index_path, SCHEMA, rows, version=VERSION, metadata=embeddings.tags)


def read_embeddings(path: Path, index_path: Path) -> ClipEmbeddings:
    """Map the vectors read-only and read their table.

    Raises:
        FileNotFoundError: one of the two is missing.
        ValueError: one is cut or foreign, or they do not belong together.
    """
    columns, tags = read_table(index_path, SCHEMA, version=VERSION)
    if missing := [name for name in TAGS if name not in tags]:
        raise ValueError(f"{index_path} does not say its {missing[0]}: remove it")
    try:
        vectors_CD = read_npy(path, mapped=True)
    except ValueError as error:
        raise ValueError(f"{error}: remove it") from None
    expected = (len(columns["video_id"]), tags["embedding_dim"])
    if vectors_CD.shape != expected or vectors_CD.dtype != DTYPE:
        raise ValueError(
            f"{path} holds {vectors_CD.dtype} {vectors_CD.shape}, unlike its table: remove both"
        )
    return ClipEmbeddings(
        vectors_CD, columns["video_id"], columns["start_seconds"], columns["end_seconds"], tags
    )
