"""The machine an encoder runs on: its device, its threads, and what is noted about them."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
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

logger = logging.getLogger(__name__)


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

    A lock on a file stands for a place on a GPU, so a killed job's is free at once. Where all GPUs
    are taken, one that the fewest jobs hold is shared.
    """
    folder = folder or lock_folder()
    for sharers in itertools.count():
        for number, name in enumerate(names):
            if _hold(folder / f"bagpipe-{os.getuid()}-{sample_key(name)}-{sharers}.lock"):
                if sharers:
                    logger.warning(
                        "all %d GPUs are taken by other jobs; sharing number %d with %d of them",
                        *(len(names), number, sharers),
                    )
                return number
    raise AssertionError("no end of places")


def lock_folder() -> Path:
    """A folder of this machine that all its jobs see, also where each has a TMPDIR of its own."""
    usual = Path("/tmp")  # noqa: S108 - it holds locks, and what they hold is never read
    return usual if os.access(usual, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _hold(path: Path) -> bool:
    """Lock the file until this process ends; False when another one has it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


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
    busy = utilization(device)
    return f"{'' if busy is None else f'GPU {busy} % busy, '}peak GPU memory {peak:.1f} GiB"


def utilization(device: torch.device) -> int | None:
    """Percent of the last moment in which the GPU computed, by any process; None: cannot be told.

    It needs the package nvidia-ml-py, and a driver that tells: that of a part of a GPU (MIG) does
    not.
    """
    try:
        from pynvml import NVMLError
    except ImportError:
        return None
    try:
        return torch.cuda.utilization(device)
    except (NVMLError, ModuleNotFoundError, RuntimeError):
        return None


def provenance(encoder: Encoder, batch: int, *, gpu_decodes: bool = False) -> dict:
    """How features were computed: may move their last digit, and is never compared."""
    return {
        "device": encoder.device.type,
        "machine": platform.machine(),
        "batch": batch,
        "threads": torch.get_num_threads(),
        # Which videos it was, in the end, each row of the index says.
        "decoder": f"PyAV {version('av')}" + (", NVDEC and torch" if gpu_decodes else ""),
        "torch": torch.__version__,
    }
