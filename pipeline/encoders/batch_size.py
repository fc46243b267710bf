"""How many windows a batch holds when the user leaves that to us: probed once, then held.

Shapes: T frames, H and W pixels.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch
from torch import Tensor

from pipeline.encoders.interface import Encoder
from pipeline.formats.files import read_json, write_json
from pipeline.formats.tensors import is_out_of_memory

LARGEST = 256
"""Windows that are tried at most."""
WORTH = 1.05
"""A larger batch must give so many times the clips a second."""

logger = logging.getLogger(__name__)


def held_size(encoder: Encoder, window_shape: tuple[int, ...], path: Path) -> int:
    """The size that the job before this one probed and put down at `path`, or a newly probed one.

    A killed job and the one that goes on with its work then compute the same bytes.
    """
    machine = [str(encoder.device), torch.get_num_threads()]
    if path.exists():
        found = read_json(path)
        if isinstance(found, dict) and found.get("machine") == machine:
            return int(found["batch"])
    size = probed_size(encoder, window_shape)
    write_json(path, {"machine": machine, "batch": size})
    return size


def probed_size(encoder: Encoder, window_shape: tuple[int, ...], largest: int = LARGEST) -> int:
    """The batch that this machine is best at, for windows of uint8 `window_shape` [T, H, W, 3].

    It doubles from 1; twice in a row without `WORTH` times the clips a second, or memory that
    would not suffice for the next step, ends it.
    """
    best, best_rate, size = 1, 0.0, 1
    while size <= min(largest, 4 * best):
        try:
            rate = _clips_a_second(encoder, torch.zeros(size, *window_shape, dtype=torch.uint8))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
        if rate > WORTH * best_rate:
            best, best_rate = size, rate
        if not _room_for_twice(encoder.device):
            break
        size *= 2
    logger.info("batches of %d windows: %.2f clips/s with the network alone", best, best_rate)
    return best


def _clips_a_second(encoder: Encoder, windows_BTHWC: Tensor) -> float:
    """The better of two timed runs after a first one, which builds what later ones reuse."""
    encoder(windows_BTHWC).cpu()
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        encoder(windows_BTHWC).cpu()
        taken.append(time.perf_counter() - began)
    return len(windows_BTHWC) / max(min(taken), 1e-9)


def _room_for_twice(device: torch.device) -> bool:
    """Whether a GPU has held no more than half of its memory so far."""
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    return 2 * torch.cuda.max_memory_allocated(device) < total
