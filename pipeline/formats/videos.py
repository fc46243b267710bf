"""The videos table that a user brings: CSV or parquet with `video_id,path[,split]`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.formats.parquet import iterate_user_parquet

VIDEO_SUFFIXES = frozenset({
    ".3g2", ".3gp", ".asf", ".avi", ".f4v", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4",
    ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv",
})  # fmt: skip
"""Of the files that are taken for videos by their names."""
SPLITS = ("", "train", "val")
_DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True, slots=True)
class VideoEntry:
    """One row of the videos table."""

    video_id: str
    path: str
    """Empty: the video was removed, and its row keeps its place."""
    split: str
    """`train`, `val`, or empty: decided by a hash of the id."""


def read_videos(path: str | Path) -> list[VideoEntry]:
    """Read the videos table in row order.

    Raises:
        FileNotFoundError: there is no such table.
        ValueError: a column is missing, an id is empty or repeated (both lines are named), or a
            split is none of `SPLITS`.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"the videos table {path} does not exist: name it in plan.videos, or make one with"
            " `python -m pipeline.tools.catalog --root DIR --output FILE`"
        )
    entries: list[VideoEntry] = []
    first_line: dict[str, int] = {}
    for line, row in _rows(path):
        entry = _entry(path, line, row)
        if first := first_line.get(entry.video_id):
            raise ValueError(
                f"{path}: video id {entry.video_id[:80]!r} stands on line {first}"
                f" and again on line {line}; ids are unique"
            )
        first_line[entry.video_id] = line
        entries.append(entry)
    return entries


def _rows(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield (line number, row); a parquet table counts its first row as line 1."""
    if path.suffix == ".parquet":
        yield from enumerate(iterate_user_parquet(path), start=1)
        return
    with open(path, newline="", encoding="utf-8-sig") as file:
        try:
            header = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=table_delimiter(header))
            _check_columns(path, reader.fieldnames or [])
            for row in reader:
                yield reader.line_num, row
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(
                f"{path}: not a UTF-8 CSV file (a byte is 0x{byte:02x}); in a spreadsheet, save it"
                " as `CSV UTF-8`"
            ) from None
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: not a CSV file: {error}") from None


def table_delimiter(header: str) -> str:
    """What separates a table's columns, by its first line: spreadsheets differ by country."""
    for delimiter in _DELIMITERS:
        if "video_id" in next(csv.reader([header], delimiter=delimiter), ()):
            return delimiter
    return ","


def _check_columns(path: Path, found: Sequence[str]) -> None:
    missing = [name for name in ("video_id", "path") if name not in found]
    if missing:
        listed = ", ".join(map(str, found))[:200] or "nothing"
        raise ValueError(
            f"{path}: no column {' and '.join(missing)}; found {listed};"
            " needed: video_id,path and, if wanted, split"
        )


def _entry(path: Path, line: int, row: dict) -> VideoEntry:
    _check_columns(path, tuple(row))
    cells = [row["video_id"], row["path"], row.get("split")]
    if any(not isinstance(cell, str | None) for cell in cells):
        raise ValueError(f"{path}, line {line}: {str(cells)[:200]} must be texts")
    video_id, video_path, split = (cell or "" for cell in cells)
    if not video_id:
        raise ValueError(f"{path}, line {line}: empty video_id; name the video or remove the row")
    if any(character in video_id + video_path for character in "\t\r\n\0"):
        shown = video_id[:80]
        raise ValueError(f"{path}, line {line}: a tab, line end or NUL in {shown!r} or its path")
    if split not in SPLITS:
        raise ValueError(f"{path}, line {line}: split {split[:80]!r}, allowed: train, val or empty")
    return VideoEntry(video_id, video_path, split)
