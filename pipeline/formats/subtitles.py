"""SRT and WebVTT files, whichever a file really is: its blocks of text and their times.

Every line with an arrow is a border between captions, whether or not its times can be read: so no
caption is ever taken for a part of the one before it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pipeline.formats.caption_times import parse_time

ARROW = "-->"
_INLINE_TIME = re.compile(r"<\d[\d:.,]*>")
_COMMENT = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")

logger = logging.getLogger(__name__)

Cue = tuple[float | None, float | None, str]
"""start and end in seconds, both None where they cannot be read, and the text as it stands."""


def read_cues(text: str, path: str | Path) -> list[Cue]:
    """The cues of a subtitle file's `text`, whose line ends are line feeds, in its order.

    Times that cannot be read are named in the log, with `path` and line.

    Raises:
        ValueError: there is no line of times, or none that can be read.
    """
    lines = text.removeprefix("\ufeff").rstrip().split("\n")
    is_vtt = next((line for line in lines if line.strip()), "").startswith("WEBVTT")
    borders = [at for at, line in enumerate(lines) if ARROW in line]
    if not borders and not is_vtt and text.strip():
        raise ValueError(f"{path} is not a caption file: no timed text in it")
    times = [_times_of(lines[at]) for at in borders]
    unread = [at for at, (start, _) in zip(borders, times, strict=True) if start is None]
    if unread:
        example = f"line {unread[0] + 1}: {lines[unread[0]].strip()[:80]!r}"
        if len(unread) == len(borders):
            raise ValueError(f"{path} is not a caption file: no line of times reads, as {example}")
        logger.warning("%s: %d lines hold no times, as %s", path, len(unread), example)
    texts = _texts(lines, borders, is_vtt=is_vtt)
    return [(*span, words) for span, words in zip(times, texts, strict=True)]


def _times_of(line: str) -> tuple[float | None, float | None]:
    """Both times of a border, behind which settings may stand; or neither."""
    before, after = line.split(ARROW, 1)
    start, end = parse_time(before), parse_time((after.split() or [""])[0])
    return (None, None) if start is None or end is None else (start, end)


def _texts(lines: list[str], borders: list[int], *, is_vtt: bool) -> Iterator[str]:
    """The text below each border, down to the name of the next cue."""
    number = None
    if borders:
        _, number = _name_above(lines, 0, borders[0], None, is_vtt=is_vtt)
    for border, following in pairwise([*borders, len(lines)]):
        below = border + 1
        stop, number = _name_above(lines, below, following, number, is_vtt=is_vtt)
        block = "\n".join(_spoken(lines[below:stop], is_vtt=is_vtt)).strip("\n")
        yield _INLINE_TIME.sub("", block)


def _name_above(
    lines: list[str], first: int, border: int, number: int | None, *, is_vtt: bool
) -> tuple[int, int | None]:
    """Where the text in lines[first:border] ends: a cue's name may stand right above its border.

    A line of digits below a blank one is a name, and so is any other there in WebVTT. Without a
    blank line above, or at the end of the file, only the number after `number` is one: a caption's
    last line may well be a quantity. Also returns the name, if it is a number.
    """
    above = border - 1
    if above < first or not lines[above].strip():
        return border, None
    name = lines[above].strip()
    value = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None
    counted_on = value is not None and number is not None and value == number + 1
    stands_alone = above == 0 or (above > first and not lines[above - 1].strip())
    at_end = border == len(lines)
    is_name = counted_on or (not at_end and (value is not None or is_vtt))
    if is_name and (stands_alone or (counted_on and not at_end)):
        return above, value
    return border, None


def _spoken(lines: list[str], *, is_vtt: bool) -> Iterator[str]:
    """The lines without WebVTT's comments and styles, which end at a blank line."""
    comment = False
    above = "x"
    for line in lines:
        if not line.strip():
            comment = False
        elif is_vtt and not above.strip() and _COMMENT.match(line):
            comment = True
        above = line
        if not comment:
            yield line
