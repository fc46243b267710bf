"""The empty chunks at the end of an AVI file: each says "as before", and libav passes over them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

_ENTRY = np.dtype([("name", "S4"), ("flags", "<u4"), ("offset", "<u4"), ("size", "<u4")])

MAX_CHUNKS = 100
"""Beside the pictures; a file has a handful."""
MAX_INDEX_BYTES = 2**26
"""Of four million chunks."""


def empty_chunks_at_end(path: Path, stream_index: int) -> int:
    """How many frames a file's index (`idx1`) lists after the last one that holds something.

    0 where it has no such index, or nothing in it.
    """
    names = [b"%02ddc" % stream_index, b"%02ddb" % stream_index]
    index = np.frombuffer(_index(path), _ENTRY)
    sizes = index["size"][np.isin(index["name"], names)]
    full = np.flatnonzero(sizes)
    return len(sizes) - 1 - int(full[-1]) if len(full) else 0


def _index(path: Path) -> bytes:
    """The whole entries of a file's index; nothing where there is none."""
    with open(path, "rb") as file:
        head = file.read(12)
        for _ in range(MAX_CHUNKS):
            if len(head) < 8:
                break
            name, size = struct.unpack("<4sI", head[:8])
            if name == b"idx1":
                data = file.read(min(size, MAX_INDEX_BYTES))
                return data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize]
            if name != b"RIFF":  # which holds the others
                file.seek(size + size % 2, os.SEEK_CUR)
            head = file.read(8)
    return b""
