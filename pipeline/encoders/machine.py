"""The machine an encoder runs on: its device, its threads, and what is noted about them."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

from pipeline.encoders.interface import Encoder


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
