"""Text files of unknown encoding, as users bring them: found out, then read without surprises."""

from __future__ import annotations

import codecs
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import charset_normalizer

_BLOCK = 1 << 20
_HEAD = 1 << 12
_SAMPLE = 1 << 16
_WESTERN = "cp1252"
_TELLING = 256
"""Bytes of lines beyond ASCII from which a guess is worth something."""
_WITH_MARK = frozenset({"utf_16", "utf_32"})
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

logger = logging.getLogger(__name__)


class Utf8Scan(NamedTuple):
    """How well a file decodes as UTF-8."""

    damaged: int
    """Sequences that are none."""
    sound: int
    """Characters beyond ASCII that are right."""
    sample: bytes
    """Lines around the first damage, for guessing another encoding."""


class Encoding(NamedTuple):
    """The codec of a text file."""

    name: str
    guessed_from: int = 0
    """Bytes of the sample that it was guessed from; 0: the file itself says it."""


def detect_encoding(path: str | Path) -> Encoding:
    """The codec of a text file: its mark or its zeros, else UTF-8, else a guess from its bytes.

    A UTF-8 file with a few damaged bytes stays UTF-8: damage below a tenth of what decodes well
    says more about the damage than about the encoding.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    for mark, name in _BOMS:
        if head.startswith(mark):
            return Encoding(name)
    if (found := _by_zeros(head)) is not None:
        return Encoding(found)
    scan = _scan_utf8(path)
    if scan.damaged * 10 <= scan.sound or not scan.damaged:
        return Encoding("utf-8")
    return Encoding(_guess(scan.sample), len(scan.sample))


def usual_guess(paths: Iterable[str | Path]) -> str | None:
    """The encoding guessed for most of the files that are long enough to tell; the log names it.

    None where no file needs a guess. Files that cannot be read count for nothing.
    """
    guesses: Counter[str] = Counter()
    short: Counter[str] = Counter()
    example = None
    for path in paths:
        try:
            name, guessed_from = detect_encoding(path)
        except OSError:
            continue
        if guessed_from:
            example = example or path
            (guesses if guessed_from >= _TELLING else short)[name] += 1
    if example is None:
        return None
    usual = (guesses or short).most_common(1)[0][0]
    logger.warning(
        "%d files, as %s, say no encoding and are no UTF-8; it is guessed, mostly as %s",
        guesses.total() + short.total(), example, usual,
    )  # fmt: skip
    return usual


def _by_zeros(head: bytes) -> str | None:
    """UTF-16 without a mark: of text in Latin letters every other byte is zero."""
    pairs = len(head) // 2
    zeros = [head[at : 2 * pairs : 2].count(0) for at in (0, 1)]
    for other, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if 2 * zeros[other] > pairs > 1 and 20 * zeros[1 - other] < pairs:
            return name
    return None


def _guess(sample: bytes) -> str:
    matches = list(charset_normalizer.from_bytes(sample))
    # A mark within the sample is none at the file's start, and these codecs fail without one.
    matches = [match for match in matches if match.encoding not in _WITH_MARK]
    if not matches:
        return _WESTERN
    scores = {match.encoding: (match.chaos, match.coherence) for match in matches}
    # Short texts often fit several code pages equally, listed by name: cp1250 before cp1252.
    return _WESTERN if scores.get(_WESTERN) == scores[matches[0].encoding] else matches[0].encoding


def iterate_lines(path: str | Path, guess: str | None = None) -> Iterator[str]:
    """Yield a text file's lines with their ends, without NULs; damaged bytes become U+FFFD.

    `guess` is the encoding of a file that says none and is too short to guess one from.
    """
    name, guessed_from = detect_encoding(path)
    if guess is not None and 0 < guessed_from < _TELLING:
        name = guess
    with open(path, encoding=name, errors="replace", newline="") as file:
        for line in file:
            yield line.replace("\0", "") if "\0" in line else line


def read_text(path: str | Path, guess: str | None = None) -> str:
    """The whole file as text, its line ends line feeds, without NULs."""
    text = "".join(iterate_lines(path, guess))
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
