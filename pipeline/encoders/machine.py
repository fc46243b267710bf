"""The machine an encoder runs on: its device, its threads, and what is noted about them."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

from pipeline.encoders.interface import Encoder
from pipeline.formats.names import sample_key

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""

log = logging.getLogger(__name__)


def choose_device(name: str) -> str:
    """`cpu`, `cuda:N`, or for `auto` a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but no GPU is to be seen; allowed here: cpu, auto")
    if name == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{take_gpu([gpu_name(number) for number in range(torch.cuda.device_count())])}"


def gpu_name(number: int) -> str:
    """What all processes call the GPU that is `number` here, whatever CUDA_VISIBLE_DEVICES says."""
    return str(torch.cuda.get_device_properties(number).uuid)


def take_gpu(names: list[str], folder: Path | None = None) -> int:
    """The number of a GPU of `names` that no other job holds; it is ours until this process ends.

    A lock on a file stands for the GPU, so a killed job's is free at once. Where all are taken, the
    process id chooses.
    """
    folder = folder or Path(tempfile.gettempdir())
    for number, name in enumerate(names):
        path = folder / f"bagpipe-{os.getuid()}-{sample_key(name)}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        return number
    chosen = os.getpid() % len(names)
    log.warning("all %d GPUs are taken by other jobs; sharing number %d", len(names), chosen)
    return chosen


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


def machine_state(device: torch.device) -> str:
    """What a GPU is doing: how busy it is, where that can be told, and its peak memory."""
    if device.type != "cuda":
        return ""
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    try:
        busy = f"GPU {torch.cuda.utilization(device)} % busy, "
    except (ModuleNotFoundError, RuntimeError):  # needs pynvml
        busy = ""
    return f"{busy}peak GPU memory {peak:.1f} GiB"


def provenance(encoder: Encoder, batch: int, *, gpu_decodes: bool = False) -> dict:
    """How features were computed: may move their last digit, and is never compared."""
    return {
        "device": encoder.device.type,
        "machine": platform.machine(),
        "batch": batch,
        "threads": torch.get_num_threads(),
        "decoder": f"PyAV {version('av')}" + (" with NVDEC" if gpu_decodes else ""),
        "torch": torch.__version__,
    }
