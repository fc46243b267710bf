"""What torch says of files and of memory.

The only door to `torch.load` and `torch.save`: weights, read without running what is in them.
"""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch

from pipeline.formats.arrays import BROKEN

_BROKEN: tuple[type[Exception], ...] = (
    UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError,
    AttributeError, OverflowError, AssertionError, MemoryError, struct.error,
)  # fmt: skip
"""What torch raises for a file that is none of its own, is cut, or holds more than weights."""
_NO_MEMORY = ("out of memory", "can't allocate memory", "_STATUS_ALLOC_FAILED")
"""Words of an error for want of memory: of CUDA and its allocator, the CPU's, cuBLAS and cuDNN."""


def read_tensors(
    source: str | Path | IO[bytes],
    *,
    where: str | Path | None = None,
    what: str = "PyTorch file of weights alone",
) -> Any:
    """The tensors, texts and numbers of a file, on the CPU; `where` and `what` name it in errors.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is cut or foreign, or would run code.
    """
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, UnpicklingError):  # torch advises to run what is in it
            why = "it is none, or holds more than tensors, texts and numbers"
        raise ValueError(f"{where or source} is not a whole {what}: {why}") from None


def tensor_bytes(content: Any) -> memoryview:
    """What `torch.save` writes; to a file, it would hide a full disk behind an error of its own."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def check_sums(path: str | Path, *, what: str) -> None:
    """Compare the checksums of a file that `torch.save` wrote, which `torch.load` does not.

    Raises:
        ValueError: a byte of it was changed, or its end is missing; the message calls it `what`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except BROKEN as error:
        raise ValueError(f"{path} is not a whole {what}: {error}") from None
    if damaged:
        raise ValueError(f"{path} is not a whole {what}: {damaged} is damaged")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out, on a GPU or in the CPU's allocator."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in _NO_MEMORY)
