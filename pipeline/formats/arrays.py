"""The only door to `numpy.load`: `.npy` and `.npz` files, which may be damaged or foreign.

An array's header says how large it is, and numpy makes room for that before it reads: here a header
is believed only when the file is as long.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np

BROKEN: tuple[type[Exception], ...] = (
    ValueError, EOFError, KeyError, OSError, SyntaxError, TokenError, TypeError, OverflowError,
    MemoryError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What `zipfile` and numpy's parser of headers raise for bytes that are none."""

Header = tuple[tuple[int, ...], bool, np.dtype]
"""Shape, whether it is in Fortran's order, and the type of one number."""


def read_header(file: IO[bytes]) -> Header:
    """Read the header of a `.npy` file of version 1, at which `file` stands; it then stands behind.

    Raises:
        ValueError: it is no header of numbers or texts, or says what no array can be.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of .npy, expected (1, 0)")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except BROKEN as error:
        raise ValueError(f"no .npy header: {_line(error)}") from None
    if dtype.hasobject or any(size < 0 for size in shape) or max(shape, default=0) >= 2**63:
        raise ValueError(f"no .npy header: {dtype} {shape}")
    return shape, fortran, dtype


def num_bytes(header: Header) -> int:
    """Of an array's numbers."""
    shape, _, dtype = header
    return math.prod(shape) * dtype.itemsize


def read_npy(path: str | Path, *, mapped: bool = False) -> np.ndarray:
    """The array of a `.npy` file, read or mapped read-only.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is cut or foreign, or holds objects.
    """
    try:
        with open(path, "rb") as file:
            _check_size(file, Path(path).stat().st_size)
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise ValueError(f"{path} is not a whole .npy file: {_line(error)}") from None


def read_npz(path: str | Path, *names: str) -> list[np.ndarray]:
    """These arrays of an `.npz` file, their checksums checked.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is cut or foreign, lacks an array, or holds objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [_member(archive, f"{name}.npy") for name in names]
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise ValueError(f"{path} is not a whole .npz file: {_line(error)}") from None


def npz_names(path: str | Path) -> list[str]:
    """The names of the arrays of an `.npz` file; raises as `read_npz` does."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise ValueError(f"{path} is not a whole .npz file: {_line(error)}") from None


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read to the end, which is where `zipfile` compares the checksum."""
    with archive.open(name) as file:
        data = file.read()
    stream = io.BytesIO(data)
    _check_size(stream, len(data))
    return np.lib.format.read_array(stream, allow_pickle=False)


def _check_size(file: IO[bytes], size: int) -> None:
    """Refuse a header that promises more than the file holds; `file` then stands at its start."""
    needed = num_bytes(read_header(file))
    if needed > size - file.tell():
        raise ValueError(f"{needed:,} bytes of numbers, and the file has {size - file.tell():,}")
    file.seek(0)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
