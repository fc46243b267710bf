"""Tables: what is written is read, and a table of another kind is refused."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.formats.parquet import (
    describe_table,
    iterate_user_parquet,
    read_metadata,
    read_rows,
    read_table,
    write_table,
)

SCHEMA = {"name": "string", "count": "int64", "crc": "uint32", "seconds": "float64", "ok": "bool"}
ROWS = [
    {"name": "ü,\n", "count": -(2**62), "crc": 2**32 - 1, "seconds": 0.1, "ok": True},
    {"name": "", "count": 0, "crc": 0, "seconds": -1e300, "ok": False},
]


def test_rows_and_metadata_survive(tmp_path):
    write_table(tmp_path / "a.parquet", SCHEMA, ROWS, version="x-1", metadata={"b": [1, "ü"]})
    assert read_rows(tmp_path / "a.parquet", SCHEMA, version="x-1") == (ROWS, {"b": [1, "ü"]})
    columns, _ = read_table(tmp_path / "a.parquet", SCHEMA, version="x-1")
    assert list(columns) == list(SCHEMA)
    assert columns["count"] == [-(2**62), 0]


def test_an_empty_table_keeps_its_columns(tmp_path):
    write_table(tmp_path / "a.parquet", SCHEMA, [], version="x-1")
    assert read_rows(tmp_path / "a.parquet", SCHEMA, version="x-1") == ([], {})
    assert pq.read_schema(tmp_path / "a.parquet").names == list(SCHEMA)


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name, metadata in (("a", {"p": 1, "q": 2}), ("b", {"q": 2, "p": 1})):
        write_table(tmp_path / name, SCHEMA, ROWS, version="x-1", metadata=metadata)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_another_version_is_named(tmp_path):
    write_table(tmp_path / "a.parquet", SCHEMA, ROWS, version="x-1")
    with pytest.raises(ValueError, match=r"a\.parquet holds format 'x-1', expected 'x-2': rebuild"):
        read_rows(tmp_path / "a.parquet", SCHEMA, version="x-2")


def test_a_foreign_table_is_named(tmp_path):
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="holds format 'none'"):
        read_rows(tmp_path / "a.parquet", SCHEMA, version="x-1")


def test_a_missing_column_is_named(tmp_path):
    write_table(tmp_path / "a.parquet", {"name": "string"}, [{"name": "a"}], version="x-1")
    with pytest.raises(ValueError, match="lacks the columns count, crc, seconds, ok"):
        read_rows(tmp_path / "a.parquet", SCHEMA, version="x-1")


def test_a_value_of_another_type_is_not_written(tmp_path):
    with pytest.raises(pa.ArrowInvalid):
        write_table(tmp_path / "a.parquet", SCHEMA, [{**ROWS[0], "count": "x"}], version="x-1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [0, 0.3, 0.99])
def test_a_cut_file_is_named(tmp_path, keep):
    path = tmp_path / "a.parquet"
    write_table(path, SCHEMA, ROWS, version="x-1")
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"a\.parquet is not a whole parquet file"):
        read_rows(path, SCHEMA, version="x-1")


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        read_rows(tmp_path / "none", SCHEMA, version="x-1")


def test_folder_names_do_not_become_columns(tmp_path):
    path = tmp_path / "split=train" / "a.parquet"
    write_table(path, {"name": "string"}, [{"name": "a"}], version="x-1")
    assert read_table(path, {"name": "string"}, version="x-1")[0] == {"name": ["a"]}


def test_a_users_table_is_streamed_whatever_its_columns(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "t": ["a", None]}), tmp_path / "u.parquet")
    found = list(iterate_user_parquet(tmp_path / "u.parquet"))
    assert found == [{"id": 1, "t": "a"}, {"id": 2, "t": None}]
    (tmp_path / "u.csv").write_text("id,t\n")
    with pytest.raises(ValueError, match=r"u\.csv is not a parquet file"):
        list(iterate_user_parquet(tmp_path / "u.csv"))


def test_a_text_that_is_no_utf_8_is_no_traceback(tmp_path):
    text = pa.array([b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"name": text}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet is not a parquet file: 'utf-8' codec"):
        list(iterate_user_parquet(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, None]), "the column name is int64 with 1 empty cells, expected string"),
        (pa.array(["a", None]), "the column name is string with 1 empty cells"),
    ],
)
def test_a_column_of_another_type_or_with_holes_is_refused(tmp_path, column, message):
    tags = {"bagpipe": "x-1", "metadata": "{}"}
    table = pa.table({"name": column}).replace_schema_metadata(tags)
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "a.parquet", {"name": "string"}, version="x-1")


@pytest.mark.parametrize("metadata", ["{", "[]", "[" * 100_000])
def test_metadata_that_is_none_is_named(tmp_path, metadata):
    tags = {"bagpipe": "x-1", "metadata": metadata}
    table = pa.table({"name": ["a"]}).replace_schema_metadata(tags)
    pq.write_table(table, tmp_path / "a.parquet")
    for read in (
        lambda path: read_table(path, {"name": "string"}, version="x-1"),
        lambda path: read_metadata(path, version="x-1"),
        describe_table,
    ):
        with pytest.raises(ValueError, match=r"a\.parquet has damaged metadata"):
            read(tmp_path / "a.parquet")
