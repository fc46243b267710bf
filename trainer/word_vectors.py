"""Word vectors that others trained, into the rows of a vocabulary.

    file                        what it is
    .bin, .bin.gz               word2vec: a line `words numbers`, then words, a space, floats
    .txt, .vec, .txt.gz         GloVe's and fastText's text: a word and its numbers on each line
    .npy                        a matrix [rows, numbers] without pickles, whose words are in a list:
                                a .txt with a word a line, or a .npy of texts

Files are read as a stream; only rows of wanted words are kept. A word is looked for as it stands,
then with its case folded, as the vocabulary's words are; the first such row counts.

Letters: V words of the vocabulary, W numbers of a vector.
"""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch

from pipeline.formats.arrays import read_npy
from pipeline.formats.files import read_text_file
from trainer.model import TwoTowers

_HEADER = re.compile(rb"[0-9]{1,18} [0-9]{1,18}")
LARGEST_DIM = 100_000
"""More numbers than any word has: a file that says more is none."""

logger = logging.getLogger(__name__)


def load_word_vectors(
    model: TwoTowers, words: Sequence[str], path: str | Path, word_list: str | Path | None
) -> int:
    """Fill the word table of `model`; returns how many of its words have a vector, and says so.

    Other words keep their random rows, made as large as the loaded ones.

    Raises:
        ValueError: a broken file, another dimension than word_dim, or no word in common.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"word_vectors {path} does not exist")
    return fill_words(model, words, read_vectors(path, word_list), str(path))


def fill_words(model: TwoTowers, words: Sequence[str], vectors, where: str) -> int:
    """Put (word, vector) pairs into the word table; `ValueError` when none fits."""
    table = model.text.words.weight
    found_VW, known_V = _match(words, vectors, table.shape[1], where)
    if not known_V.any():
        raise ValueError(f"{where} has no word of the vocabulary (such as {', '.join(words[:3])})")
    if not np.isfinite(found_VW[known_V]).all():
        raise ValueError(f"{where} has words whose numbers are NaN or infinite")
    spread = float(found_VW[known_V].std())
    with torch.no_grad():
        rows = table[1:]
        rows.mul_(spread / max(float(rows.std()), 1e-12))
        known = torch.from_numpy(known_V).to(table.device)
        rows[known] = torch.from_numpy(found_VW[known_V]).to(rows)
    logger.info(
        "%d of %d words (%.1f %%) have a vector in %s, the others start at random",
        known_V.sum(), len(words), 100 * known_V.mean(), where,
    )  # fmt: skip
    return int(known_V.sum())


def read_vectors(path: Path, word_list: str | Path | None) -> Iterator[tuple[str, np.ndarray]]:
    """(word, [W] float32) pairs of a file in any of the forms above."""
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[-1]
    if kind == "npy":
        yield from _matrix(path, word_list)
        return
    if kind not in ("bin", "txt", "vec"):
        raise ValueError(f"word_vectors {path} is neither .bin, .txt, .vec nor .npy")
    read = _binary if kind == "bin" else _text
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            yield from read(cast("IO[bytes]", file), path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}") from None


def read_word_list(path: str | Path) -> list[str]:
    """The words of a .txt (one a line) or of a .npy of texts."""
    if not Path(path).exists():
        raise FileNotFoundError(f"word_list {path} does not exist")
    if Path(path).suffix == ".npy":
        return [str(word) for word in _array(Path(path)).ravel().tolist()]
    return read_text_file(path).splitlines()


def _match(words: Sequence[str], vectors, dim: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """[V, W] and which of its rows were found."""
    places = {word: place for place, word in enumerate(words)}
    found_VW = np.zeros((len(words), dim), np.float32)
    exact_V, folded_V = np.zeros(len(words), bool), np.zeros(len(words), bool)
    for word, vector in vectors:
        if len(vector) != dim:
            raise ValueError(
                f"{where} has {len(vector)} numbers for {word!r}, but word_dim is {dim}"
            )
        for form, known_V in ((word, exact_V), (word.casefold(), folded_V)):
            place = places.get(form)
            if place is not None and not exact_V[place] and not known_V[place]:
                found_VW[place], known_V[place] = vector, True
                break
    return found_VW, exact_V | folded_V


def _binary(file: IO[bytes], path: Path) -> Iterator[tuple[str, np.ndarray]]:
    head = file.readline(100).split()
    if len(head) != 2 or not all(part.isdigit() for part in head):
        raise ValueError(f"{path} does not begin with a word2vec header `words numbers`")
    count, dim = (int(part) for part in head)
    if not 0 < dim <= LARGEST_DIM:
        raise ValueError(f"{path} says that a word has {dim} numbers, allowed: 1 to {LARGEST_DIM}")
    for number in range(count):
        word = bytearray()
        while (letter := file.read(1)) not in (b" ", b""):
            if letter != b"\n":  # some writers end each vector with one
                word += letter
        data = file.read(4 * dim)
        if len(data) != 4 * dim:
            raise ValueError(f"{path} ends within word {number + 1} of {count}")
        yield word.decode("utf-8", errors="replace"), np.frombuffer(data, "<f4")


def _text(file: IO[bytes], path: Path) -> Iterator[tuple[str, np.ndarray]]:
    dim = None
    for number, line in enumerate(file, start=1):
        fields = line.decode("utf-8", errors="replace").rstrip().split(" ")
        if number == 1 and _HEADER.fullmatch(line.strip()):
            dim = min(int(fields[1]), LARGEST_DIM)  # a header
            continue
        dim = dim or max(1, len(fields) - 1)
        try:
            vector = np.array(fields[-dim:], np.float32)
        except ValueError:
            raise ValueError(f"{path} line {number} has no {dim} numbers after a word") from None
        if len(fields) <= dim:
            raise ValueError(f"{path} line {number} has {len(fields) - 1} numbers, not {dim}")
        yield " ".join(fields[:-dim]), vector  # some words of GloVe hold spaces


def _matrix(path: Path, word_list: str | Path | None) -> Iterator[tuple[str, np.ndarray]]:
    if word_list is None:
        raise ValueError(f"{path} needs its words: name them in word_list")
    matrix, words = _array(path), read_word_list(word_list)
    if matrix.dtype.kind not in "fiu":
        raise ValueError(f"{path} holds {matrix.dtype}, needed: numbers")
    if matrix.ndim != 2 or len(matrix) != len(words):
        raise ValueError(f"{path} has shape {matrix.shape}, but {word_list} has {len(words)} words")
    yield from zip(words, np.asarray(matrix, np.float32), strict=True)


def _array(path: Path) -> np.ndarray:
    try:
        return read_npy(path)
    except ValueError as error:
        raise ValueError(f"{path} is no .npy without pickles: {error}") from None
