"""Shards: any WebDataset reader streams them, and the index finds the same numbers."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest

from pipeline.formats.parquet import read_rows, write_table
from pipeline.formats.shard import (
    SCHEMA,
    VERSION,
    VideoFacts,
    read_features,
    read_index,
    read_index_facts,
    read_video,
)
from pipeline.formats.shard_writer import write_shard
from tests.encoded_videos import RECIPE, VIDEOS


@pytest.fixture
def shard(tmp_path):
    """A tar and its index, of `VIDEOS`."""
    paths = tmp_path / "00000.tar", tmp_path / "00000.parquet"
    write_shard(*paths, VIDEOS, RECIPE, {"torch": "x"})
    return paths


def test_the_index_has_a_row_for_each_video_and_finds_its_numbers(shard):
    index = read_index(shard[1])
    assert [row.video_id for row in index.rows] == [v.facts.video_id for v in VIDEOS]
    assert (index.recipe, index.provenance) == (RECIPE, {"torch": "x"})
    with open(shard[0], "rb") as file:
        for row, expected in zip(index.rows, VIDEOS, strict=True):
            found = {f.name: getattr(row, f.name) for f in dataclasses.fields(VideoFacts)}
            assert VideoFacts(**found) == expected.facts
            if expected.features is None:
                assert (row.offset, row.length, row.num_vectors, row.crc32) == (0, 0, 0, 0)
                continue
            assert row.num_vectors == len(expected.features)
            whole = read_features(file.fileno(), row.offset, row.feature_dim, 0, row.num_vectors)
            assert np.array_equal(whole, expected.features)
            assert row.crc32 == zlib.crc32(expected.features.tobytes())
            last = read_features(file.fileno(), row.offset, 6, row.num_vectors - 1, 1)
            assert np.array_equal(last, expected.features[-1:])


def test_the_metadata_knows_the_tar(shard):
    index = read_index(shard[1])
    assert index.tar_bytes == shard[0].stat().st_size
    assert len(index.tar_sha256) == 64


def test_an_index_that_does_not_say_which_decoder_it_was_is_read_all_the_same(shard):
    """They were written before a GPU made pictures, and hold months of work."""
    index = read_index(shard[1])
    older = {name: kind for name, kind in SCHEMA.items() if name != "decoder"}
    rows = [{name: getattr(row, name) for name in older} for row in index.rows]
    metadata = {
        "recipe": index.recipe.to_dict(),
        "provenance": index.provenance,
        "tar_bytes": index.tar_bytes,
        "tar_sha256": index.tar_sha256,
    }
    write_table(shard[1], older, rows, version=VERSION, metadata=metadata)
    assert read_index(shard[1]).rows == [dataclasses.replace(row, decoder="") for row in index.rows]
    write_table(
        shard[1],
        {name: kind for name, kind in older.items() if name != "crc32"},
        rows,
        version=VERSION,
        metadata=metadata,
    )
    with pytest.raises(ValueError, match="lacks the columns crc32"):
        read_index(shard[1])


def test_reading_past_the_end_is_an_error_and_no_short_array(shard):
    row = next(row for row in read_index(shard[1]).rows if row.encoded)
    shard[0].write_bytes(shard[0].read_bytes()[: row.offset + 5])
    with open(shard[0], "rb") as file, pytest.raises(ValueError, match="shorter than its index"):
        read_features(file.fileno(), row.offset, 6, 0, row.num_vectors)


def test_a_video_that_is_read_whole_is_compared_with_its_index(shard):
    tar, index = shard
    row = next(row for row in read_index(index).rows if row.encoded)
    with open(tar, "r+b") as file:
        expected = read_features(file.fileno(), row.offset, row.feature_dim, 0, row.num_vectors)
        assert np.array_equal(read_video(file.fileno(), row), expected)
        file.seek(row.offset + 5)
        file.write(b"\x01")
        file.flush()
        with pytest.raises(ValueError, match=f"the features of {row.video_id!r} are damaged"):
            read_video(file.fileno(), row)


def test_a_manifest_is_no_index(tmp_path):
    (tmp_path / "1.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="not a whole parquet file"):
        read_index(tmp_path / "1.parquet")


@pytest.mark.parametrize(
    ("offset", "start", "count"),
    [(0, 0, 10**12), (0, 2**62, 0), (-(10**6), 0, 1), (0, 0, -1), (2**63, 0, 1), (0, -1, 1)],
)
def test_rows_that_no_file_has_are_refused_before_room_is_made(shard, offset, start, count):
    with open(shard[0], "rb") as file, pytest.raises(ValueError, match="shorter than its index"):
        read_features(file.fileno(), offset, 6, start, count)


@pytest.mark.parametrize("change", [{"recipe": {}}, {"recipe": None}, {"tar_bytes": "7"}])
def test_an_index_whose_metadata_is_incomplete_is_named(shard, change):
    rows, metadata = read_rows(shard[1], SCHEMA, version=VERSION)
    write_table(shard[1], SCHEMA, rows, version=VERSION, metadata=metadata | change)
    for read in (read_index, read_index_facts):
        with pytest.raises(ValueError, match=r"00000\.parquet has damaged metadata"):
            read(shard[1])
