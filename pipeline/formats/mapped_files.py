"""Files mapped read-only into memory, thousands of them at once."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path

import numpy as np


def map_file(path: str | Path) -> np.ndarray:
    """All bytes of a file, read only where they are touched: [bytes] uint8, not writable.

    Python's own map keeps a descriptor of the file, and machines often allow only 1,024 of them, so
    on Linux the map is asked of the C library, which lets the descriptor go. The map ends with the
    last array that shows a part of it.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.zeros(0, np.uint8)
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_longlong,
        ]  # fmt: skip
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} while mapping", str(path))
    memory = (ctypes.c_ubyte * size).from_address(address)
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    weakref.finalize(memory, library.munmap, address, size)
    content = np.frombuffer(memoryview(memory), np.uint8)
    content.flags.writeable = False
    return content


def let_go(content: np.ndarray) -> None:
    """Take a whole map's pages out of this process; those touched again come back by themselves.

    A check that read a file once would otherwise count as this process's memory for ever.
    """
    if len(content):
        library = ctypes.CDLL(None)
        library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        library.madvise(content.ctypes.data, len(content), mmap.MADV_DONTNEED)
