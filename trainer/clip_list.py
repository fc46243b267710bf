"""Lists of test clips, as they are published: a text and the clip that shows it on each line.

Known forms are `video_id,start,end,text` in any column order (YouCook2's has `end,start,task,text,
video_id`) and, for clips that are whole videos, `video_id,sentence` without times (MSR-VTT's has
`key,vid_key,video_id,sentence`).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

TEXT_COLUMNS = ("text", "sentence")
PUBLISHED_PAIRS = {"youcook2": 3350, "msrvtt": 1000}
"""Pairs of the lists that numbers in the literature rest on, by the name of the protocol."""


@dataclass(frozen=True, slots=True)
class TestRow:
    """One row of the list of test clips."""

    __test__ = False  # no test of pytest's

    video_id: str
    start: float
    end: float
    """Infinite: up to the end of the video."""
    text: str


def read_test_rows(path: str | Path) -> list[TestRow]:
    """Read a list of test clips; columns that are not needed may stand beside the others.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing, a time is no number, a span is empty or a row longer than
            the header (the line is named), or there are no rows.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"the list of test clips {path} does not exist: name a CSV in evaluate.protocols, or"
            " null for the validation split"
        )
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True, strict=True)
        try:
            text, timed = _columns(path, list(reader.fieldnames or []))
            rows = [
                _test_row(row, text, timed, f"{path}, line {reader.line_num}") for row in reader
            ]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} is not a UTF-8 CSV file: {error}") from None
    if not rows:
        raise ValueError(f"{path} holds no clips")
    return rows


def check_published(name: str, rows: list[TestRow], path: str | Path) -> None:
    """Refuse another list under the name of a published one: its numbers would be compared."""
    expected = PUBLISHED_PAIRS.get(name, len(rows))
    if len(rows) != expected:
        raise ValueError(
            f"{path} has {len(rows)} clips, the published list of {name} has {expected}: bring that"
            " list, or give the protocol another name"
        )


def _columns(path: str | Path, found: list[str]) -> tuple[str, bool]:
    """The name of the text's column, and whether there are times."""
    text = next((name for name in TEXT_COLUMNS if name in found), None)
    timed = "start" in found or "end" in found
    needed = ["video_id", *(["start", "end"] if timed else []), *([] if text else ["text"])]
    absent = [name for name in needed if name not in found]
    if absent or text is None:
        listed = ", ".join(found)[:200] or "nothing"
        raise ValueError(
            f"{path} lacks the columns {', '.join(absent)}; found {listed};"
            " needed: video_id, text (or sentence) and, unless clips are whole videos, start, end"
        )
    return text, timed


def _test_row(row: dict, text: str, timed: bool, where: str) -> TestRow:
    if None in row:
        raise ValueError(
            f"{where}: more fields than the header has, as {str(row[None][0])[:80]!r}: put texts"
            " with commas in quotes"
        )
    if "\n" in (row[text] or ""):
        raise ValueError(f"{where}: a text over several lines: is a quote left open?")
    if not row["video_id"]:
        raise ValueError(f"{where}: empty video_id")
    if not timed:
        return TestRow(row["video_id"], 0.0, math.inf, row[text] or "")
    try:
        start, end = float(row["start"]), float(row["end"])
    except (TypeError, ValueError):
        raise ValueError(
            f"{where}: times {str(row['start'])[:80]!r}, {str(row['end'])[:80]!r} are no numbers"
        ) from None
    if not (math.isfinite(start) and math.isfinite(end) and start < end):
        raise ValueError(f"{where}: the clip [{start}, {end}) is empty")
    return TestRow(row["video_id"], start, end, row[text] or "")
