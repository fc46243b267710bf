"""Captions in JSON: the shapes that speech recognisers, course sites and data sets write.

For one video: a list of `{start, end | duration | dur, text | content}`, an object with such a list
under `segments`, or an object of the parallel lists `start`, `end`, `text`. An end may be missing,
and a text may be a list of texts or of (text, score). For many videos: one object with a video id
for each key and one of these shapes for each value, as HowTo100M's `caption.json`.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import ijson

from pipeline.formats.caption_times import parse_time
from pipeline.formats.text_encoding import read_text

_BLOCK = 1 << 16
_STRING_OR_WORD = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*(?P<end>"|\\?\Z)|-?(?:NaN|Infinity)', re.DOTALL
)
_LONGEST_WORD = len(b"-Infinity")
_LONGEST_STRING = 1 << 24
_FAULTS_NAMED = 10
_NOTHING = (None, None, None, None)

logger = logging.getLogger(__name__)

Times = tuple[object, object, object, object]
"""start, end, text and score as they stand in the file."""


def read_json_captions(path: str | Path, guess: str | None = None) -> list[Times]:
    """The captions of one video's JSON file.

    Raises:
        ValueError: it is no JSON, or none of the shapes above.
    """
    text = read_text(path, guess).removeprefix("\ufeff")
    if not text.strip():
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 4,301 digits
        raise ValueError(f"{path} is not a JSON file: {error}") from None
    try:
        return segments_of(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def iterate_json_captions(path: str | Path) -> Iterator[tuple[str, Times]]:
    """Stream (video id, caption) from one JSON object for many videos, holding one video at a time.

    A video whose value has none of the shapes above (`null` is no captions) gives one caption of
    nothing, which cleaning counts as dropped; the first ten are named in the log.

    Raises:
        ValueError: the file is no such object; the message names the video, where it got so far.
    """
    video_id, faults, sound = None, 0, 0
    fault: Exception | None = None
    with open(path, "rb") as file:
        stream = _WithoutNaN(file)
        if not stream.starts_object():
            raise ValueError(f"{path} must hold a JSON object with a video id for each key")
        try:
            for video_id, value in ijson.kvitems(stream, "", use_float=True):
                try:
                    segments = segments_of([] if value is None else value)
                    sound += bool(segments)
                except ValueError as error:
                    faults, fault = faults + 1, error
                    if faults <= _FAULTS_NAMED:
                        logger.warning("no captions for video %r: %s: %s", video_id, path, error)
                    segments = [_NOTHING]
                for segment in segments:
                    yield video_id, segment
        except (ijson.JSONError, UnicodeDecodeError) as error:
            after = f" after video {video_id!r}" if video_id is not None else ""
            what = " ".join(str(error).split())
            raise ValueError(f"{path} is not a whole JSON file{after}: {what}") from None
        except ValueError as error:
            raise ValueError(f"{path}, video {video_id!r}: {error}") from None
    if faults and not sound:
        raise ValueError(
            f"{path}: none of its {faults} videos has captions of a known shape: {fault}"
        )
    if faults > _FAULTS_NAMED:
        logger.warning("no captions for %d videos of %s in all, for such reasons", faults, path)


def segments_of(value: object) -> list[Times]:
    """The captions in one video's JSON value; `ValueError` when it has none of the known shapes."""
    if isinstance(value, dict) and isinstance(value.get("segments"), list):
        value = value["segments"]
    if isinstance(value, dict) and {"start", "text"} <= value.keys():
        return _from_parallel_lists(value)
    if isinstance(value, list):
        if value and not any(isinstance(item, dict) and "start" in item for item in value):
            raise ValueError("item 0 is no caption with start, end and text")
        return [times for item in value for times in _from_segment(item)]
    raise ValueError(
        "no captions in it; known are a list of {start, end, text}, {segments: [...]} and"
        " {start: [...], end: [...], text: [...]}"
    )


def _from_parallel_lists(value: dict) -> list[Times]:
    lists = [value[name] for name in ("start", "end", "text", "score") if name in value]
    if not all(isinstance(values, list) for values in lists):
        raise ValueError("start, end and text must be lists")
    if len({len(values) for values in lists}) != 1:
        lengths = ", ".join(str(len(values)) for values in lists)
        raise ValueError(f"start, end and text differ in length: {lengths}")
    nothing = [None] * len(value["start"])
    rows = zip(
        value["start"], value.get("end", nothing), value["text"], value.get("score", nothing),
        strict=True,
    )  # fmt: skip
    return [times for row in rows for times in _each_text(*row)]


def _from_segment(item: object) -> list[Times]:
    """One segment's captions; one of nothing for what is none, which costs itself alone."""
    if not isinstance(item, dict) or "start" not in item:
        return [_NOTHING]
    text = item.get("text", item.get("content"))
    start, end = item["start"], item.get("end")
    duration = item.get("duration", item.get("dur"))
    if end is None and duration is not None:
        end = _sum(start, duration)
    return _each_text(start, end, text, item.get("score"))


def _each_text(start: object, end: object, text: object, score: object) -> list[Times]:
    """A caption for each of a span's texts, which may stand in pairs with their scores.

    HowToCaption has such lists of texts.
    """
    if not isinstance(text, list):
        return [(start, end, text, score)]
    texts = [text] if _is_pair(text) else text or [None]
    scores = score if isinstance(score, list) and len(score) == len(texts) else [score] * len(texts)
    pairs = zip(texts, scores, strict=True)
    return [(start, end, *(words if _is_pair(words) else (words, own))) for words, own in pairs]


def _is_pair(text: object) -> bool:
    """Whether it is a text with its score."""
    return (
        isinstance(text, list)
        and len(text) == 2
        and isinstance(text[0], str)
        and isinstance(text[1], int | float)
    )


def _sum(start: object, duration: object) -> object:
    """The end, where both are plain numbers or both are clock times; else none is known."""
    clocks = [":" in value for value in (f"{start}", f"{duration}")]
    first, length = parse_time(start), parse_time(duration)
    if first is None or length is None or any(clocks) != all(clocks):
        return None
    if not any(clocks):
        return round(first + length, 6)
    minutes, seconds = divmod(round(first + length, 6), 60)
    return f"{minutes:.0f}:{seconds:09.6f}"


class _WithoutNaN(io.RawIOBase):
    """Reads a JSON file with `null` where Python and pandas write NaN, which is no JSON.

    Only what stands outside strings is replaced; an unfinished string waits for its end, so memory
    is bounded by the longest string.
    """

    def __init__(self, file: io.BufferedIOBase):
        super().__init__()
        self._file = file
        self._pending = b""
        self._ready = b""
        self._ended = False
        self._drop_mark()

    def _drop_mark(self) -> None:
        self._pending = self._file.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")

    def starts_object(self) -> bool:
        """Whether the first visible character opens an object."""
        return self._pending.lstrip().startswith(b"{")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._ready and not self._ended:
            self._advance()
        piece = self._ready[: len(buffer)]
        self._ready = self._ready[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def _advance(self) -> None:
        block = self._file.read(_BLOCK)
        self._ended = not block
        text = self._pending + block
        out, position = [], 0
        for match in _STRING_OR_WORD.finditer(text):
            if match["end"] is not None and match["end"] != b'"' and not self._ended:
                break  # the string goes on in the next block
            out.append(text[position : match.start()])
            out.append(match.group() if match["end"] is not None else b"null")
            position = match.end()
        rest = text[position:]
        keep = 0 if self._ended else _unfinished(rest)
        if keep > _LONGEST_STRING:
            raise ValueError(f"a string longer than {_LONGEST_STRING:,} bytes")
        self._ready += b"".join([*out, rest[: len(rest) - keep]])
        self._pending = rest[len(rest) - keep :]


def _unfinished(rest: bytes) -> int:
    """Bytes at the end of `rest` that may belong to a string or a word that goes on."""
    opened = rest.find(b'"')
    if opened >= 0:
        return len(rest) - opened
    return min(len(rest), _LONGEST_WORD)
