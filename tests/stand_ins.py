"""Encoders that stand in for a network: they are quick, and count what they see."""

from __future__ import annotations

import torch

from pipeline.pixels import Geometry

NO_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
)
"""The ways in which torch says that memory ran out."""


class Counting:
    """Stands in for an encoder: a window's mean, and how large the batches were."""

    device = torch.device("cpu")

    def __init__(self, room: int = 10**9, fault: Exception = NO_MEMORY[0]):
        self.sizes, self.room, self.fault = [], room, fault

    def __call__(self, windows_BTHWC):
        self.sizes.append(len(windows_BTHWC))
        if len(windows_BTHWC) > self.room:
            raise self.fault
        return windows_BTHWC.float().mean(dim=(1, 2, 3, 4))[:, None]


class Means:
    """Stands in for a network: the mean colours of a window; counts and may fail."""

    name, weights_sha256, feature_dim = "s3d", "ab", 3
    geometry, device = Geometry(frame_size=32), torch.device("cpu")

    def __init__(self, fail_after: int = 10**9):
        self.left = fail_after
        self.seen = 0

    def __call__(self, windows_BTHWC):
        if self.left == 0:
            raise RuntimeError("the power went out")
        self.left -= 1
        used = windows_BTHWC.flatten(1).any(dim=1)
        self.seen += int(used.sum())
        return windows_BTHWC.float().mean(dim=(1, 2, 3)) / 255


class Cramped(Means):
    """Has room for three windows at a time."""

    def __call__(self, windows_BTHWC):
        if len(windows_BTHWC) > 3:
            raise torch.OutOfMemoryError
        return super().__call__(windows_BTHWC)
