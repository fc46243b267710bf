"""Batches of windows that run across videos, always of the same size.

A fixed size makes a window's features the same bytes whatever else is in the batch, and whether the
video was encoded in this run or in one that was killed. Where memory ends, the size halves and
stays so. On a GPU a batch is copied while the one before it is computed, and the features of a
batch are fetched when the next one has been started.

Shapes: B windows, T frames, F features, H and W pixels.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from pipeline.encoders.interface import Encoder
from pipeline.formats.tensors import is_out_of_memory

logger = logging.getLogger(__name__)

Taker = list[np.ndarray]
"""Gets the [F] float16 rows of one video."""


class WindowBatch:
    """Collects windows and runs the encoder when `size` of them are there."""

    def __init__(self, encoder: Encoder, size: int):
        self.encoder = encoder
        self.size = size
        self.feeder = _Feeder(encoder.device)
        self.takers: list[Taker] = []
        self.buffer_BTHWC: Tensor | None = None
        self.computed: tuple[list[Taker], list[Tensor]] | None = None
        """The batch whose features a GPU may still be computing."""

    def add(self, pixels: np.ndarray, taker: Taker) -> bool:
        """Copy one window (uint8 [frames, H, W, 3]); `taker` will get its [F] float16 features.

        Returns whether any taker has been served.
        """
        if self.buffer_BTHWC is None:
            self.buffer_BTHWC = self.feeder.buffer((self.size, *pixels.shape))
        self.buffer_BTHWC[len(self.takers)] = torch.from_numpy(pixels)
        self.takers.append(taker)
        return len(self.takers) >= self.size and self._start()

    def run(self) -> None:
        """Serve all takers now; places without a window are black."""
        if self.takers:
            assert self.buffer_BTHWC is not None
            self.buffer_BTHWC[len(self.takers) :] = 0
            self._start()
        self._serve()

    def _start(self) -> bool:
        """Start the batch that is full; True when takers have been served."""
        assert self.buffer_BTHWC is not None
        pieces = self._encode(self.buffer_BTHWC)
        served = self._serve()
        self.computed = (self.takers, pieces)
        self.takers, self.buffer_BTHWC = [], None
        return served if self.feeder.overlaps else self._serve()

    def _serve(self) -> bool:
        """Hand out the features of the batch that was started last."""
        if self.computed is None:
            return False
        takers, pieces = self.computed
        self.computed = None
        rows_BF = torch.cat([piece.to(torch.float16).cpu() for piece in pieces]).numpy()
        # The last piece may be padded beyond the takers.
        for taker, row_F in zip(takers, rows_BF, strict=False):
            taker.append(row_F)
        return True

    def _encode(self, windows_BTHWC: Tensor) -> list[Tensor]:
        """The features of a full batch, in pieces of `size`, which halves until they fit."""
        while True:
            try:
                return [
                    self.encoder(self.feeder.moved(_padded(piece, self.size)))
                    for piece in windows_BTHWC.split(self.size)
                ]
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # Behind the handler: the exception holds on to all that the failed attempt computed.
            self._halve()

    def _halve(self) -> None:
        if self.size == 1:
            raise ValueError(
                "memory does not suffice for one window: lower encode.frame_size or the frames of"
                " encode.sampling, or set run.encode.device to cpu"
            )
        self.size //= 2
        self.feeder.free()
        logger.warning("out of memory: batches of %d windows from here on", self.size)


def _padded(windows_BTHWC: Tensor, size: int) -> Tensor:
    """`windows_BTHWC` with black windows behind it, up to `size`."""
    missing = size - len(windows_BTHWC)
    if not missing:
        return windows_BTHWC
    return torch.cat([windows_BTHWC, windows_BTHWC.new_zeros(missing, *windows_BTHWC.shape[1:])])


class _Feeder:
    """Brings batches to the device; to a GPU from pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device):
        self.device = device
        self.overlaps = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.overlaps else None
        self.used: Tensor | None = None

    def buffer(self, shape: tuple[int, ...]) -> Tensor:
        """A batch on the host; for a GPU a new one each time: the last may still be on its way."""
        if self.overlaps:
            return torch.zeros(shape, dtype=torch.uint8, pin_memory=True)
        if self.used is None or self.used.shape != shape:
            self.used = torch.zeros(shape, dtype=torch.uint8)
        return self.used

    def moved(self, windows_BTHWC: Tensor) -> Tensor:
        """The batch on the device; what is computed next waits for it, what was before does not."""
        if self.stream is None:
            return windows_BTHWC
        with torch.cuda.stream(self.stream):
            there = windows_BTHWC.to(self.device, non_blocking=True)
        now = torch.cuda.current_stream(self.device)
        now.wait_stream(self.stream)
        there.record_stream(now)
        return there

    def free(self) -> None:
        """Give back what a failed attempt holds."""
        if self.overlaps:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
