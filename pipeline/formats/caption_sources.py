"""Captions as users bring them: tables, subtitles and JSON, read into raw rows.

Rows are as the file says them: times may be numbers, text, empty or nonsense, and a text may be
missing. `pipeline.caption_cleaning` decides what becomes of them.
"""

from __future__ import annotations

import csv
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from pipeline.formats.caption_folder import iterate_file_ids
from pipeline.formats.caption_json import iterate_json_captions, read_json_captions
from pipeline.formats.parquet import iterate_user_parquet
from pipeline.formats.subtitles import read_cues
from pipeline.formats.text_encoding import iterate_lines, read_text

SUBTITLE_SUFFIXES = (".vtt", ".srt")
JSON_SUFFIXES = (".json", ".sjson")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
HEADER = ["video_id", "start", "end", "text", "score"]
CENTRE = "centre"
"""In place of an end: the start is the middle of a span whose length is not known."""
MISSING_TEXTS = frozenset({"", "null", "NULL", "NA", "N/A", "#N/A", "nan", "NaN", "None"})
"""What programs write into a table where there is no text; `read_csv` of pandas says the same."""
_OTHER_NAMES = {"video_id": ("vid",), "start": ("start_seconds",), "end": ("end_seconds",)}
_CENTRES = ("timestamp",)
"""Columns that hold middles, where there is no start."""
_DELIMITERS = (",", "\t", ";", "|")
_LONGEST_TEXT = 100_000
"""Characters; a longer text is none that somebody said. `csv` stops at 131,072, and must be able to
read the parts into which JSON is split."""
_QUOTED_LINES = 100
"""Of one row; a quote that is still open then opens nothing."""
_FAULTS_NAMED = 3

logger = logging.getLogger(__name__)


class RawCaption(NamedTuple):
    """One caption as its source says it."""

    video_id: str
    start: object
    end: object
    text: object
    """None: the source says that there is none."""
    score: object = None
    """How well the text fits, where the source says so."""


def is_subtitle(path: str | Path) -> bool:
    """Whether the file's times carry their own unit; the raw rows are then in seconds."""
    return Path(path).suffix.lower() in SUBTITLE_SUFFIXES


def iterate_captions(path: str | Path) -> Iterator[RawCaption]:
    """Stream the rows of one file that holds the captions of many videos.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no table or JSON, or lacks a column; the message names what was found.
    """
    suffix = Path(path).suffix.lower()
    if suffix in JSON_SUFFIXES:
        for video_id, caption in iterate_json_captions(path):
            yield _from_json(video_id, *caption)
    elif suffix == ".parquet":
        yield from _iterate_parquet(path)
    elif suffix in (".csv", ".tsv", ".txt"):
        yield from _iterate_table(path, ["video_id", "start", "text"])
    else:
        raise ValueError(
            f"{path}: captions for many videos come as {', '.join(TABLE_SUFFIXES)} or .json, or as"
            " a folder with a file for each video"
        )


def iterate_caption_ids(source: str | Path) -> Iterator[str]:
    """The video ids of a captions source (folder, table or JSON), each once, in source order."""
    if Path(source).is_dir():
        yield from iterate_file_ids(source)
        return
    seen: set[str] = set()
    for caption in iterate_captions(source):
        if caption.video_id and caption.video_id not in seen:
            seen.add(caption.video_id)
            yield caption.video_id


def read_caption_file(
    path: str | Path, video_id: str, *, guess: str | None = None
) -> list[RawCaption]:
    """The rows of one video's file; an empty file has none.

    `guess` is the encoding of a file whose own bytes do not tell (`text_encoding.usual_guess`).

    Raises:
        ValueError: it is no caption file; the message names the file and, for tables, the line.
    """
    suffix = Path(path).suffix.lower()
    if suffix in SUBTITLE_SUFFIXES:
        return [RawCaption(video_id, *cue) for cue in read_cues(read_text(path, guess), path)]
    if suffix in JSON_SUFFIXES:
        return [_from_json(video_id, *caption) for caption in read_json_captions(path, guess)]
    if Path(path).stat().st_size == 0:
        return []
    rows = _iterate_table(path, ["start", "text"], guess)
    return [row._replace(video_id=video_id) for row in rows]


def _iterate_table(
    path: str | Path, needed: list[str], guess: str | None = None
) -> Iterator[RawCaption]:
    """Yield rows of a delimited table; columns that are not needed stay empty."""
    lines = iterate_lines(path, guess)
    header_line = next(lines, "")
    delimiter = _delimiter(path, header_line, needed)
    try:
        header = next(csv.reader([header_line], delimiter=delimiter), [])
    except csv.Error as error:
        raise ValueError(f"{path}, line 1: not a table: {error}") from None
    columns, width, faults = _columns(path, header, needed), len(header), 0
    for number, row in _rows(lines, delimiter, width):
        if len(row) <= width:
            yield _raw(row, columns)
        elif columns["text"] == width - 1:
            yield _raw([*row[: width - 1], delimiter.join(row[width - 1 :])], columns)
        else:
            faults += 1
            if faults <= _FAULTS_NAMED:
                logger.warning(
                    "%s, line %d: left out, for it has %d fields under a header of %d",
                    path, number, len(row), width,
                )  # fmt: skip
            yield RawCaption(_raw(row, columns).video_id, None, None, None)
    if faults > _FAULTS_NAMED:
        logger.warning("%s: %d rows in all have more fields than its header", path, faults)


def _rows(lines: Iterator[str], delimiter: str, width: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of a table's rows below its header of `width` fields.

    Many programs write no quotes around fields, and leave those in a text as they are. So quotes
    mean something only where they part a row into fields, down to a line within `_QUOTED_LINES`;
    and not where each of the lines that they would join is a row by itself.
    """
    numbered = enumerate(lines, start=2)
    ahead: deque[tuple[int, str]] = deque()
    while (first := ahead.popleft() if ahead else next(numbered, None)) is not None:
        number, line = first
        fields, block = None, [first]
        if '"' in line:
            fields = _quoted([line], delimiter)
            while fields is None and len(block) < _QUOTED_LINES:
                another = ahead.popleft() if ahead else next(numbered, None)
                if another is None:
                    break
                block.append(another)
                if '"' in another[1]:
                    fields = _quoted([text for _, text in block], delimiter)
            if len(block) > 1 and all(len(_plain(text, delimiter)) == width for _, text in block):
                fields = None
        if fields is None:
            fields = _plain(line, delimiter)
            ahead.extendleft(reversed(block[1:]))
        if fields != [""]:
            yield number, fields


def _plain(line: str, delimiter: str) -> list[str]:
    return line.rstrip("\r\n").split(delimiter)


def _quoted(lines: list[str], delimiter: str) -> list[str] | None:
    """The fields of a row over all of `lines`; None where its quotes do not close."""
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None


def _plausible(text: object) -> object:
    return None if isinstance(text, str) and len(text) > _LONGEST_TEXT else text


def _from_json(
    video_id: str, start: object, end: object, text: object, score: object
) -> RawCaption:
    return RawCaption(video_id, start, end, _plausible(text), score)


def _raw(row: list[str], columns: dict[str, int]) -> RawCaption:
    """A table's row; fields that it lacks are empty."""
    video_id, start, end, text, score = (
        row[columns[name]] if columns.get(name, len(row)) < len(row) else "" for name in HEADER
    )
    if CENTRE in columns and row:
        start, end = row[columns[CENTRE]] if columns[CENTRE] < len(row) else "", CENTRE
    missing = text.strip() in MISSING_TEXTS
    return RawCaption(video_id, start, end, None if missing else _plausible(text), score or None)


def _delimiter(path: str | Path, header_line: str, needed: list[str]) -> str:
    """The delimiter that splits the header into the needed columns; else the suffix says it."""
    expected = "\t" if Path(path).suffix.lower() == ".tsv" else ","
    for delimiter in (expected, *_DELIMITERS):
        found = _named(_fields(header_line, delimiter))
        if all(name in found for name in needed):
            return delimiter
    return expected


def _fields(line: str, delimiter: str) -> list[str]:
    """Of a line; none where `csv` refuses it, which reading the table then says."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _columns(path: str | Path, header: list[str], needed: list[str]) -> dict[str, int]:
    found = _named(header)
    missing = [name for name in needed if name not in found]
    if missing:
        listed = ", ".join(header)[:200] or "nothing"
        raise ValueError(
            f"{path}, line 1: not a caption table: no column {' and '.join(missing)};"
            f" found {listed!r}; needed: {','.join(needed)} (and end, unless captions last until"
            " the next)"
        )
    return found


def _named(header: Iterable[str]) -> dict[str, int]:
    """Column name to its place; the first of equal names counts."""
    places: dict[str, int] = {}
    for at, name in enumerate(header):
        places.setdefault(name.strip().strip("\ufeff").lower(), at)
    for name, others in _OTHER_NAMES.items():
        for other in others:
            if other in places:
                places.setdefault(name, places[other])
    for name in _CENTRES:
        if name in places and "start" not in places:
            places["start"] = places[CENTRE] = places[name]
    return places


def _iterate_parquet(path: str | Path) -> Iterator[RawCaption]:
    columns = None
    for row in iterate_user_parquet(path):
        if columns is None:
            columns, names = _columns(path, list(row), ["video_id", "start", "text"]), list(row)
        video_id, start, end, text, score = (
            _plain_value(path, name, row[names[columns[name]]]) if name in columns else None
            for name in HEADER
        )
        if CENTRE in columns:
            end = CENTRE
        if isinstance(video_id, float):
            raise ValueError(
                f"{path}: video_id holds numbers with a point, as {video_id}: write ids as text"
            )
        missing = not isinstance(text, str) or text.strip() in MISSING_TEXTS
        video_id = "" if video_id is None else str(video_id)
        yield RawCaption(video_id, start, end, None if missing else _plausible(text), score)


def _plain_value(path: str | Path, name: str, value: object) -> object:
    """A parquet cell as a table's text would say it.

    Raises:
        ValueError: it is of a type that no caption's field can have.
    """
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, timedelta):
        minutes, seconds = divmod(value, timedelta(minutes=1))
        return f"{minutes}:{seconds.total_seconds():09.6f}"
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, bytes | list | dict):
        kind = {bytes: "bytes", list: "lists", dict: "structures"}[type(value)]
        raise ValueError(
            f"{path}: the column {name} holds {kind}, as {str(value)[:60]}; needed is one plain"
            " value in each row"
        )
    return value
