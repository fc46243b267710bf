"""Large batches in little memory: the towers run over chunks, the loss sees everything.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup". First
every chunk is embedded without a graph; the loss of all embeddings gives their gradients; then each
chunk is embedded again, with the same random draws, and its embeddings' gradients go on into the
parameters. The result is that of the step without chunks; plain accumulation is not, for its chunks
are no negatives of each other.

Chunks run outside DDP, so ranks may have different numbers of them; one empty pass through DDP at
the end averages the sums of all chunks in one exchange and brings the temperature's gradient, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipeline.formats.tensors import is_out_of_memory

logger = logging.getLogger(__name__)

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | float], torch.Tensor]
"""Clips [B, D], captions [N, D] and temperature to a loss []."""


class DoesNotFit(OSError):
    """Memory ran out on this rank, and no smaller piece can be tried."""


@dataclass(frozen=True, slots=True)
class Range:
    """Some of a batch's clips and some of its captions."""

    clips: slice
    captions: slice

    def halves(self) -> list[Range]:
        """Two ranges of half the size."""
        sides = []
        for part in (self.clips, self.captions):
            middle = (part.start + part.stop + 1) // 2
            sides.append((slice(part.start, middle), slice(middle, part.stop)))
        return [Range(clips, captions) for clips, captions in zip(*sides, strict=True)]


@dataclass(slots=True)
class _Piece:
    """A chunk, the random state it began with, and whether it drew random numbers."""

    part: Range
    state: list[torch.Tensor]
    drew: bool


class GradientCache:
    """Forward and backward of a step in chunks of up to `chunk` clips of this rank."""

    def __init__(
        self,
        model: nn.Module,
        parallel: nn.Module,
        inputs: Callable[[Any, Range], tuple],
        *,
        chunk: int,
        context: Callable[[], AbstractContextManager],
        device: torch.device,
    ) -> None:
        """`inputs(batch, range)` gives the model's arguments, `context()` wraps each forward."""
        self.model, self.parallel, self.chunk = model, parallel, chunk
        self._inputs, self._context, self._device = inputs, context, device

    def step(
        self,
        batch: Any,
        num_clips: int,
        num_captions: int,
        loss_of: Loss,
        scaled: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
    ) -> torch.Tensor:
        """Add the gradients of `scaled(loss)` to the parameters, averaged over ranks; the loss."""
        pieces, clips_BD, captions_ND, temperature = self._embed(
            self.model, batch, num_clips, num_captions
        )
        clips_BD.requires_grad_()
        captions_ND.requires_grad_()
        learned = isinstance(temperature, torch.Tensor)
        if learned:
            temperature = temperature.detach().requires_grad_()
        loss = loss_of(clips_BD, captions_ND, temperature)
        scaled(loss).backward()
        for piece in pieces:
            self._add_gradients(batch, piece, clips_BD.grad, captions_ND.grad)
        empty = self._inputs(batch, Range(slice(0, 0), slice(0, 0)))
        with self._context():
            no_clips, no_captions, own_temperature = self.parallel(*empty)
        total = no_clips.sum() + no_captions.sum()
        if learned:
            total = total + own_temperature * temperature.grad
        total.backward()
        return loss.detach()

    def embed(
        self, model: nn.Module, batch: Any, num_clips: int, num_captions: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch in chunks through towers like the model's, without a graph: [B, D], [N, D]."""
        _, clips_BD, captions_ND, _ = self._embed(model, batch, num_clips, num_captions)
        return clips_BD, captions_ND

    def _embed(self, model: nn.Module, batch: Any, num_clips: int, num_captions: int):
        """All embeddings without a graph; a chunk that does not fit into memory is halved."""
        before = _random_state(self._device)
        while True:
            found = self._embedded(model, batch, ranges(num_clips, num_captions, self.chunk))
            if found is not None:
                return found
            _set_random_state(before, self._device)
            self._halve(num_clips)

    def _embedded(self, model: nn.Module, batch: Any, parts: list[Range]):
        """What `_embed` returns, or None, with nothing left of it, where a chunk does not fit."""
        pieces, embeddings = [], []
        try:
            for part in parts:
                before = _random_state(self._device)
                with torch.no_grad(), self._context():
                    *both, temperature = model(*self._inputs(batch, part))
                pieces.append(_Piece(part, before, _moved(before, self._device)))
                embeddings.append(both)
            clips_BD, captions_ND = (torch.cat(side) for side in zip(*embeddings, strict=True))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        return pieces, clips_BD, captions_ND, temperature

    def _add_gradients(self, batch, piece: _Piece, d_clips_BD, d_captions_ND) -> None:
        """A chunk's part of the parameters' gradients; halves of it where it does not fit."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        found = self._gradients(batch, piece, d_clips_BD, d_captions_ND, parameters)
        if found is None:
            self._split(batch, piece, d_clips_BD, d_captions_ND)
            return
        for parameter, gradient in zip(parameters, found, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad += gradient

    def _gradients(self, batch, piece: _Piece, d_clips_BD, d_captions_ND, parameters):
        """Each parameter's gradient, or None, with nothing left of the graph, out of memory."""
        try:
            with _replayed(piece.state, self._device), self._context():
                clips, captions, _ = self.model(*self._inputs(batch, piece.part))
            pairs = [(clips, d_clips_BD[piece.part.clips])]
            pairs.append((captions, d_captions_ND[piece.part.captions]))
            outputs, incoming = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
            return torch.autograd.grad(outputs, parameters, incoming, allow_unused=True)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _split(self, batch, piece: _Piece, d_clips_BD, d_captions_ND) -> None:
        """Go on with two halves, unless the chunk's random draws would then differ."""
        if piece.drew:
            raise DoesNotFit(
                f"a chunk of {self.chunk} clips does not fit into memory and its dropout cannot be"
                " cut: lower run.train.chunk"
            )
        halves = piece.part.halves()
        size = piece.part.clips.stop - piece.part.clips.start
        if size <= self.chunk:
            self._halve(size)
        for half in halves:
            half_piece = _Piece(half, piece.state, drew=False)
            self._add_gradients(batch, half_piece, d_clips_BD, d_captions_ND)

    def _halve(self, num_clips: int) -> None:
        used = min(self.chunk, num_clips)
        if used <= 1:
            raise DoesNotFit("not even one clip fits into memory: the towers are too large for it")
        self.chunk = (used + 1) // 2
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        logger.warning(
            "out of memory with %d clips in a chunk: going on with %d; the batch and the result"
            " stay as they are",
            used, self.chunk,
        )  # fmt: skip


def ranges(num_clips: int, num_captions: int, chunk: int) -> list[Range]:
    """Cut clips into chunks of up to `chunk` and captions into as many; at least one chunk."""
    count = max(1, -(-num_clips // chunk))

    def cuts(size: int) -> list[int]:
        return [size * number // count for number in range(count + 1)]

    clips, captions = cuts(num_clips), cuts(num_captions)
    return [
        Range(slice(clips[i], clips[i + 1]), slice(captions[i], captions[i + 1]))
        for i in range(count)
    ]


def _random_state(device: torch.device) -> list[torch.Tensor]:
    state = [torch.get_rng_state()]
    if device.type == "cuda":
        state.append(torch.cuda.get_rng_state(device))
    return state


def _set_random_state(state: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def _moved(before: list[torch.Tensor], device: torch.device) -> bool:
    now = _random_state(device)
    return not all(torch.equal(a, b) for a, b in zip(before, now, strict=True))


@contextmanager
def _replayed(state: list[torch.Tensor], device: torch.device) -> Iterator[None]:
    """Draw what was drawn from `state` on, and leave the present state as it was."""
    present = _random_state(device)
    _set_random_state(state, device)
    try:
        yield
    finally:
        _set_random_state(present, device)
