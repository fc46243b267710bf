"""Batches of windows that run across videos, always of the same size.

A fixed size makes a window's features the same bytes whatever else is in the batch, and whether the
video was encoded in this run or in one that was killed.

Shapes: B windows, F features, H and W pixels.
"""

from __future__ import annotations

import numpy as np
import torch

from pipeline.encoders.interface import Encoder


class WindowBatch:
    """Collects windows and runs the encoder when `size` of them are there."""

    def __init__(self, encoder: Encoder, size: int):
        self.encoder = encoder
        self.size = size
        self.windows_BTHWC: np.ndarray | None = None
        self.takers: list[list[np.ndarray]] = []

    def add(self, pixels: np.ndarray, taker: list[np.ndarray]) -> bool:
        """Copy one window (uint8 [frames, H, W, 3]); `taker` will get its [F] float16 features.

        Returns whether that filled the batch, so that all takers have been served.
        """
        if self.windows_BTHWC is None:
            self.windows_BTHWC = np.zeros((self.size, *pixels.shape), np.uint8)
        self.windows_BTHWC[len(self.takers)] = pixels
        self.takers.append(taker)
        if len(self.takers) < self.size:
            return False
        self.run()
        return True

    def run(self) -> None:
        """Serve all takers now; places without a window are black."""
        if not self.takers:
            return
        assert self.windows_BTHWC is not None
        self.windows_BTHWC[len(self.takers) :] = 0
        features_BF = self.encoder(torch.from_numpy(self.windows_BTHWC))
        rows_BF = features_BF.to(torch.float16).cpu().numpy()
        for taker, row_F in zip(self.takers, rows_BF, strict=False):
            taker.append(row_F)
        self.takers = []
