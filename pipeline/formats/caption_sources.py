"""Captions as users bring them: tables, subtitles and JSON, read into raw rows.

Rows are as the file says them: times may be numbers, text, empty or nonsense, and a text may be
missing. `pipeline.caption_cleaning` decides what becomes of them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pysubs2

from pipeline.formats.caption_folder import iterate_file_ids
from pipeline.formats.caption_json import iterate_json_captions, read_json_captions
from pipeline.formats.parquet import iterate_user_parquet
from pipeline.formats.text_encoding import iterate_lines, read_text

SUBTITLE_SUFFIXES = (".vtt", ".srt")
JSON_SUFFIXES = (".json", ".sjson")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
HEADER = ["video_id", "start", "end", "text"]
MISSING_TEXTS = frozenset({"", "null", "NULL", "NA", "N/A", "#N/A", "nan", "NaN", "None"})
"""What programs write into a table where there is no text; `read_csv` of pandas says the same."""
_OTHER_NAMES = {"start": ("start_seconds",), "end": ("end_seconds",)}
_DELIMITERS = (",", "\t", ";", "|")
_LONGEST_TEXT = 100_000
"""Characters; a longer text is none that somebody said. `csv` stops at 131,072, so that a quote
left open swallows no table, and must be able to read the parts into which JSON is split."""
_INLINE_TIME = re.compile(r"<\d[\d:.,]*>")
_CUE_ARROW = "-->"


class RawCaption(NamedTuple):
    """One caption as its source says it."""

    video_id: str
    start: object
    end: object
    text: object
    """None: the source says that there is none."""


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
        for video_id, (start, end, text) in iterate_json_captions(path):
            yield RawCaption(video_id, start, end, _plausible(text))
    elif suffix == ".parquet":
        yield from _iterate_parquet(path)
    elif suffix in (".csv", ".tsv", ".txt"):
        yield from _iterate_table(path, HEADER)
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


def read_caption_file(path: str | Path, video_id: str) -> list[RawCaption]:
    """The rows of one video's file; an empty file has none.

    Raises:
        ValueError: it is no caption file; the message names the file and, for tables, the line.
    """
    suffix = Path(path).suffix.lower()
    if suffix in SUBTITLE_SUFFIXES:
        return [RawCaption(video_id, *times) for times in _read_subtitles(path)]
    if suffix in JSON_SUFFIXES:
        return [
            RawCaption(video_id, start, end, _plausible(text))
            for start, end, text in read_json_captions(path)
        ]
    if Path(path).stat().st_size == 0:
        return []
    return [row._replace(video_id=video_id) for row in _iterate_table(path, HEADER[1:])]


def _iterate_table(path: str | Path, needed: list[str]) -> Iterator[RawCaption]:
    """Yield rows of a delimited table; columns that are not needed stay empty."""
    lines = iterate_lines(path)
    header_line = next(lines, "")
    delimiter = _delimiter(path, header_line, needed)
    reader = csv.reader(_chained(header_line, lines), delimiter=delimiter)
    try:
        columns = _columns(path, next(reader, []), needed)
        take = [columns.get(name) for name in HEADER]
        for row in reader:
            if row:
                yield _raw(*(row[at] if at is not None and at < len(row) else "" for at in take))
    except csv.Error as error:
        hint = ": a quote left open?" if "field limit" in str(error) else ""
        raise ValueError(f"{path}, line {reader.line_num}: not a table: {error}{hint}") from None


def _plausible(text: object) -> object:
    return None if isinstance(text, str) and len(text) > _LONGEST_TEXT else text


def _chained(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _raw(video_id: str, start: str, end: str, text: str) -> RawCaption:
    return RawCaption(video_id, start, end, None if text.strip() in MISSING_TEXTS else text)


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
            f" found {listed!r}; needed: {','.join(needed)}"
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
    return places


def _iterate_parquet(path: str | Path) -> Iterator[RawCaption]:
    names = None
    for row in iterate_user_parquet(path):
        if names is None:
            columns, listed = _columns(path, list(row), HEADER), list(row)
            names = [listed[columns[name]] for name in HEADER]
        video_id, start, end, text = (row[name] for name in names)
        missing = not isinstance(text, str) or text.strip() in MISSING_TEXTS
        video_id = "" if video_id is None else str(video_id)
        yield RawCaption(video_id, start, end, None if missing else _plausible(text))


def _read_subtitles(path: str | Path) -> Iterator[tuple[float, float, str]]:
    """Cues of an SRT or WebVTT file, whichever it really is, in seconds."""
    # An inline time is no timing line, and two in a line would look like one to the parser.
    text = _INLINE_TIME.sub("", read_text(path))
    if not text.strip():
        return
    is_vtt = text.lstrip("\ufeff \n").startswith("WEBVTT")
    text = _cues_only(text) if is_vtt else text
    kind = "vtt" if is_vtt else "srt"
    try:
        subtitles = pysubs2.SSAFile.from_string(text, format_=kind, keep_html_tags=True)
    except (ValueError, pysubs2.Pysubs2Error) as error:
        raise ValueError(f"{path} is not a caption file: {error}") from None
    if not len(subtitles) and not is_vtt:
        raise ValueError(f"{path} is not a caption file: no timed text in it")
    for event in subtitles:
        words = event.text.replace("\\N", "\n").replace("\\h", " ")
        yield event.start / 1000, event.end / 1000, words


def _cues_only(text: str) -> str:
    """WebVTT without notes, styles and cue names, which the parser takes for text."""
    blocks = []
    for block in re.split(r"\n(?:\n)+", text):
        lines = block.split("\n")
        at = next((i for i, line in enumerate(lines) if _CUE_ARROW in line), None)
        if at is not None:
            blocks.append("\n".join(lines[at:]))
    return "WEBVTT\n\n" + "\n\n".join(blocks) + "\n"
