"""Clip embeddings come back as they were written, and pieces that do not fit are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.embeddings import (
    SCHEMA,
    VERSION,
    ClipEmbeddings,
    read_embeddings,
    write_embeddings,
)
from pipeline.formats.parquet import write_table

TAGS = {"model_sha256": "a", "bags_digest": "b", "recipe_identity": "c", "embedding_dim": 4}


def make(rows: int) -> ClipEmbeddings:
    """Embeddings of `rows` clips."""
    vectors = np.random.default_rng(0).normal(size=(rows, 4)).astype("<f4")
    ids = [f"ü {row}" for row in range(rows)]
    starts = [row / 3 for row in range(rows)]
    return ClipEmbeddings(vectors, ids, starts, [start + 2 for start in starts], TAGS)


def paths(folder: Path) -> tuple[Path, Path]:
    """The two files."""
    return folder / "e.npy", folder / "e.parquet"


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_round_trip_and_the_same_bytes_twice(tmp_path, rows):
    made = make(rows)
    write_embeddings(*paths(tmp_path), made)
    first = [path.read_bytes() for path in paths(tmp_path)]
    found = read_embeddings(*paths(tmp_path))
    assert np.array_equal(found.vectors_CD, made.vectors_CD)
    assert (found.video_ids, found.starts, found.ends) == (made.video_ids, made.starts, made.ends)
    assert found.tags == TAGS
    write_embeddings(*paths(tmp_path), made)
    assert [path.read_bytes() for path in paths(tmp_path)] == first


def test_numbers_that_are_none_and_wrong_shapes_are_refused(tmp_path):
    bad = make(3)
    bad.vectors_CD[1, 1] = np.nan
    with pytest.raises(ValueError, match="finite"):
        write_embeddings(*paths(tmp_path), bad)
    with pytest.raises(ValueError, match="expected"):
        write_embeddings(*paths(tmp_path), replace(make(3), video_ids=["a"]))


def test_cut_and_mixed_files_are_refused(tmp_path):
    vectors, index = paths(tmp_path)
    write_embeddings(vectors, index, make(3))
    whole = vectors.read_bytes()
    vectors.write_bytes(whole[:-8])
    with pytest.raises(ValueError, match=r"not a whole \.npy file"):
        read_embeddings(vectors, index)
    vectors.write_bytes(whole)
    write_embeddings(tmp_path / "other.npy", index, make(5))
    with pytest.raises(ValueError, match="unlike its table"):
        read_embeddings(vectors, index)


def test_vectors_of_another_type_and_a_table_without_tags_are_refused(tmp_path):
    whole = make(3)
    write_embeddings(*paths(tmp_path), whole)
    np.save(paths(tmp_path)[0], whole.vectors_CD.astype("<f8"))
    with pytest.raises(ValueError, match=r"holds float64 \(3, 4\), unlike its table"):
        read_embeddings(*paths(tmp_path))
    write_table(paths(tmp_path)[1], SCHEMA, [], version=VERSION)
    with pytest.raises(ValueError, match="does not say its model_sha256"):
        read_embeddings(*paths(tmp_path))
