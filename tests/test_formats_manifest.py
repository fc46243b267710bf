"""The manifest of a shard: every row comes back as it was, and other tables are refused."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from pipeline.formats.manifest import SCHEMA, Reason, VideoFault, read_manifest, write_manifest
from pipeline.formats.parquet import write_table
from tests.examples import manifest_row

ROWS = [
    manifest_row("b", frame_rate=30000 / 1001, start_seconds=-0.25, mtime_ns=2**62),
    manifest_row("a", Reason.NO_FRAMES.value, "„none“, of 7\tpackets", stream_index=-1),
]


def test_rows_come_back_in_their_order(tmp_path):
    write_manifest(tmp_path / "m.parquet", ROWS)
    assert read_manifest(tmp_path / "m.parquet") == ROWS
    assert [row.accepted for row in ROWS] == [True, False]
    assert pq.read_schema(tmp_path / "m.parquet").names == list(SCHEMA)
    write_manifest(tmp_path / "none.parquet", [])
    assert read_manifest(tmp_path / "none.parquet") == []


def test_another_table_and_a_cut_one_are_refused(tmp_path):
    path = tmp_path / "m.parquet"
    write_table(path, {"video_id": "string"}, [{"video_id": "a"}], version="captions-1")
    with pytest.raises(ValueError, match=r"m\.parquet holds format 'captions-1', expected 'mani"):
        read_manifest(path)
    write_manifest(path, ROWS)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"m\.parquet is not a whole parquet file"):
        read_manifest(path)


def test_a_fault_is_one_line_and_has_words_for_people():
    assert VideoFault(Reason.EMPTY, "0 bytes\n of\t 9").message == "0 bytes of 9"
    assert VideoFault(Reason.EMPTY).message == ""
    assert str(VideoFault(Reason.EMPTY)) == "empty"
