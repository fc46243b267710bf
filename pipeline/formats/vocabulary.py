"""The vocabulary file: one word a line; the word on line i has token id i, and id 0 is padding."""

from __future__ import annotations

from pathlib import Path

from pipeline.formats.files import read_text_file, write_text
from pipeline.formats.names import again

HEADER = "#bagpipe-vocabulary-1"
"""The first line stands where the padding would, so that line numbers are token ids."""


def write_vocabulary(path: str | Path, words: list[str]) -> None:
    """Write `words` in id order, the first one getting id 1."""
    write_text(path, "".join(f"{word}\n" for word in [HEADER, *words]))


def read_vocabulary(path: str | Path) -> dict[str, int]:
    """Read word to token id (from 1 on); a foreign, cut or repeating file raises `ValueError`."""
    lines = read_text_file(path).split("\n")
    if lines[0] != HEADER or lines[-1] != "":
        raise ValueError(f"{path} is not a whole vocabulary file: {again('vocabulary')}")
    ids = {word: index for index, word in enumerate(lines[1:-1], start=1)}
    if len(ids) != len(lines) - 2:
        raise ValueError(f"{path} names a word twice")
    return ids
