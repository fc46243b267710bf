"""The only door to pyarrow: tables with a fixed schema, a format version and JSON metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.formats.files import whole_file

_TYPES = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint32": pa.uint32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}

_BROKEN = (pa.ArrowException, OSError, ValueError, OverflowError, TypeError)
"""What reading damaged files and odd types raises, such as bytes that are no UTF-8."""

Schema = dict[str, str]
"""Column name to type name, one of `string int32 int64 uint32 float64 bool`, in column order."""


def write_table(
    path: str | Path,
    schema: Schema,
    rows: list[dict],
    *,
    version: str,
    metadata: dict | None = None,
) -> None:
    """Write `rows` (dicts with the schema's keys) with `metadata` beside the format `version`."""
    arrow = pa.schema([(name, _TYPES[kind]) for name, kind in schema.items()])
    columns = [
        pa.array([row[name] for row in rows], type=arrow.field(name).type) for name in schema
    ]
    extra = {"bagpipe": version, "metadata": json.dumps(metadata or {}, sort_keys=True)}
    table = pa.Table.from_arrays(columns, schema=arrow.with_metadata(extra))
    with whole_file(path) as scratch:
        pq.write_table(table, scratch, compression="zstd")


def read_table(
    path: str | Path, schema: Schema, *, version: str, later: dict[str, object] | None = None
) -> tuple[dict[str, list], dict]:
    """Read a table written by `write_table` as column lists, and its metadata.

    `later` names columns that older files of this version lack, and what stands in each row then.

    Raises:
        ValueError: the file is no parquet, of another format version, or lacks a column or a value.
    """
    table = _open(path, columns=list(schema))
    found, metadata = _tags(path, table.schema)
    if found != version:
        raise ValueError(f"{path} holds format {found!r}, expected {version!r}: rebuild it")
    fill = later or {}
    absent = [name for name in schema if name not in table.column_names]
    if missing := [name for name in absent if name not in fill]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
    columns = {
        name: [fill[name]] * len(table) if name in absent else _column(path, table, name, kind)
        for name, kind in schema.items()
    }
    return columns, metadata


def _column(path: str | Path, table: pa.Table, name: str, kind: str) -> list:
    """A column's values, which are all there and of its type."""
    if table.column_names.count(name) > 1:
        raise ValueError(f"{path} has two columns {name}: rebuild it")
    column = table.column(name)
    if column.type != _TYPES[kind] or column.null_count:
        raise ValueError(
            f"{path}: the column {name} is {column.type} with {column.null_count} empty cells,"
            f" expected {kind} without: rebuild it"
        )
    try:
        return column.to_pylist()
    except _BROKEN as error:
        raise ValueError(f"{path} is not a whole parquet file: {error}") from None


def _tags(path: str | Path, schema: pa.Schema) -> tuple[str, dict]:
    """The format version that a file says it has (`none`: not ours), and its metadata."""
    found = schema.metadata or {}
    if b"bagpipe" not in found:
        return "none", {}
    try:
        version, metadata = found[b"bagpipe"].decode(), json.loads(found[b"metadata"])
    except (ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} has damaged metadata ({error}): rebuild it") from None
    if not isinstance(metadata, dict):
        raise ValueError(f"{path} has damaged metadata (no object): rebuild it")
    return version, metadata


def read_metadata(path: str | Path, *, version: str) -> dict:
    """A table's metadata alone, without its rows; raises as `read_table` does."""
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise ValueError(f"{path} is not a whole parquet file: {error}") from None
    found, metadata = _tags(path, schema)
    if found != version:
        raise ValueError(f"{path} is not of format {version!r}: rebuild it")
    return metadata


def read_rows(
    path: str | Path, schema: Schema, *, version: str, later: dict[str, object] | None = None
) -> tuple[list[dict], dict]:
    """As `read_table`, with a dict for each row."""
    columns, metadata = read_table(path, schema, version=version, later=later)
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return rows, metadata


def describe_table(path: str | Path) -> tuple[str, int, dict]:
    """Format version, number of rows and metadata of a table written by `write_table`.

    Raises:
        ValueError: the file is no parquet, or not written by this project.
    """
    table = _open(path)
    version, metadata = _tags(path, table.schema)
    if version == "none":
        raise ValueError(
            f"{path} is a parquet file with the columns {table.column_names}, not ours"
        )
    return version, table.num_rows, metadata


def iterate_user_parquet(path: str | Path) -> Iterator[dict]:
    """Stream the rows of a parquet file that a user brings, whatever its columns."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=65_536):
                yield from batch.to_pylist()
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from None


def _open(path: str | Path, columns: list[str] | None = None) -> pa.Table:
    """A whole table, or those of `columns` that it has."""
    try:
        # Not `pq.read_table`, which looks for partitions and guesses columns from folder names.
        return pq.ParquetFile(path).read(columns)
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise ValueError(f"{path} is not a whole parquet file: {error}") from None
