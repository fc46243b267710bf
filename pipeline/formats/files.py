"""Files that are whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a scratch path beside `path`; on success sync it and rename it over `path`.

    When the block raises, the scratch file is removed and `path` stays as it was. A killed process
    leaves at most a `.tmp` file behind, which the next writer of the same path overwrites.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    try:
        with naming(path):
            yield scratch
            with open(scratch, "rb") as file:
                os.fsync(file.fileno())
            os.replace(scratch, path)
            _sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Have an `OSError` inside that names no file, as that of a full disk, name this one."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with line feeds as they are."""
    with whole_file(path) as scratch:
        scratch.write_bytes(text.encode("utf-8"))


def begins_as_zip(path: str | Path) -> bool:
    """Whether a file begins as `.npz` and torch's files do, whole or damaged."""
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def read_text_file(path: str | Path) -> str:
    """Read a text that this project wrote; one that is not UTF-8 raises `ValueError` naming it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as indented JSON with sorted keys; NaN and infinity raise `ValueError`."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: str | Path) -> Any:
    """Read one JSON document; a file that is none raises `ValueError` naming it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 4,301 digits
        raise ValueError(f"{path} is not a JSON file: {error}") from None


def write_csv(path: str | Path, header: list[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a comma-separated table with line-feed line ends."""
    with whole_file(path) as scratch, open(scratch, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(map(with_line_feeds, rows))


def with_line_feeds(row: Iterable[object]) -> list[object]:
    """A row for `csv.writer` whose texts hold no carriage return.

    Before Python 3.13 the writer leaves a lone one without quotes, and a reader ends the row there.
    """
    return [
        value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else value
        for value in row
    ]


def sha256_of_file(path: str | Path) -> str:
    """The hex sha256 of a file's bytes, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: object) -> str:
    """The hex sha256 of a JSON value's canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
