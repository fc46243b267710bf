"""Text files of unknown encoding, as users bring them: found out, then read without surprises."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import charset_normalizer

_BLOCK = 1 << 20
_SAMPLE = 1 << 16
_WESTERN = "cp1252"
_WITH_MARK = frozenset({"utf_16", "utf_32"})
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Utf8Scan(NamedTuple):
    """How well a file decodes as UTF-8."""

    damaged: int
    """Sequences that are none."""
    sound: int
    """Characters beyond ASCII that are right."""
    sample: bytes
    """Lines around the first damage, for guessing another encoding."""


def detect_encoding(path: str | Path) -> str:
    """The codec of a text file: its byte order mark, else UTF-8, else a guess from its bytes.

    A UTF-8 file with a few damaged bytes stays UTF-8: damage below a tenth of what decodes well
    says more about the damage than about the encoding.
    """
    with open(path, "rb") as file:
        head = file.read(4)
    for mark, name in _BOMS:
        if head.startswith(mark):
            return name
    scan = _scan_utf8(path)
    if scan.damaged * 10 <= scan.sound or not scan.damaged:
        return "utf-8"
    return _guess(scan.sample)


def _guess(sample: bytes) -> str:
    matches = list(charset_normalizer.from_bytes(sample))
    # A mark within the sample is none at the file's start, and these codecs fail without one.
    matches = [match for match in matches if match.encoding not in _WITH_MARK]
    if not matches:
        return _WESTERN
    scores = {match.encoding: (match.chaos, match.coherence) for match in matches}
    # Short texts often fit several code pages equally, listed by name: cp1250 before cp1252.
    return _WESTERN if scores.get(_WESTERN) == scores[matches[0].encoding] else matches[0].encoding


def iterate_lines(path: str | Path) -> Iterator[str]:
    """Yield a text file's lines with their ends, without NULs; damaged bytes become U+FFFD."""
    with open(path, encoding=detect_encoding(path), errors="replace", newline="") as file:
        for line in file:
            yield line.replace("\0", "") if "\0" in line else line


def read_text(path: str | Path) -> str:
    """The whole file as text, its line ends line feeds, without NULs."""
    text = "".join(iterate_lines(path))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _scan_utf8(path: str | Path) -> Utf8Scan:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    damaged = sound = 0
    sample = b""
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            text = decoder.decode(block)
            if text.isascii():
                continue
            bad = text.count("\ufffd")
            if bad and not sample:
                sample = _foreign_lines(block)
            damaged += bad
            sound += sum(character > "\x7f" for character in text) - bad
    if decoder.decode(b"", final=True):
        damaged += 1
    return Utf8Scan(damaged, sound, sample)


def _foreign_lines(block: bytes) -> bytes:
    """The lines beyond ASCII: the others would drown them when the encoding is guessed."""
    return b"\n".join(line for line in block.split(b"\n") if not line.isascii())[:_SAMPLE]
