"""The empty chunks at the end of an AVI file: each says "as before", and libav passes over them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_ENTRY = np.dtype([("name", "S4"), ("flags", "<u4"), ("offset", "<u4"), ("size", "<u4")])


def empty_chunks_at_end(path: Path, stream_index: int) -> int:
    """How many frames a file's index (`idx1`) lists after the last one that holds something.

    0 where it has no such index, or nothing in it.
    """
    names = [b"%02ddc" % stream_index, b"%02ddb" % stream_index]
    index = np.frombuffer(_chunk(path, b"idx1"), _ENTRY)
    sizes = index["size"][np.isin(index["name"], names)]
    full = np.flatnonzero(sizes)
    return len(sizes) - 1 - int(full[-1]) if len(full) else 0


def _chunk(path: Path, wanted: bytes) -> bytes:
    """The whole entries of one chunk beside the pictures; nothing where there is none."""
    with open(path, "rb") as file:
        head = file.read(12)
        while len(head) >= 8:
            name, size = struct.unpack("<4sI", head[:8])
            if name == wanted:
                data = file.read(size)
                return data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize]
            if name != b"RIFF":  # which holds the others
                file.seek(size + size % 2, 1)
            head = file.read(8)
    return b""
