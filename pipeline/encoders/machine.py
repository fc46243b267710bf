"""The machine an encoder runs on: its device, its threads, and what is noted about them."""

from __future__ import annotations

import ctypes
import platform
from importlib.metadata import version

import torch

from pipeline.encoders.interface import Encoder

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


def choose_device(name: str) -> str:
    """`cpu`, `cuda`, or for `auto` a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but no GPU is to be seen; allowed here: cpu, auto")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def use_threads(number: int) -> None:
    """Let the network use so many threads of the CPU."""
    torch.set_num_threads(number)


def keep_memory() -> None:
    """Keep what a batch used for the next one, where the C library is glibc.

    It gives blocks above 32 MB back to the system each time, which fills them with zeros again page
    by page: of a network of large layers that is a good part of the time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 2**30)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def provenance(encoder: Encoder, batch: int) -> dict:
    """How features were computed: may move their last digit, and is never compared."""
    return {
        "device": encoder.device.type,
        "machine": platform.machine(),
        "batch": batch,
        "threads": torch.get_num_threads(),
        "decoder": f"PyAV {version('av')}",
        "torch": torch.__version__,
    }
