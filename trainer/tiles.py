"""The tiles of the loss: sums and gradients over a block of similarities that is never held whole.

A block is a rank's own rows (clips or captions) against columns (everyone's captions or clips, or
those of a memory bank). Where all similarities are known to lie within `SAFE` of 0, sums of e^s are
taken as they are, with one exp for each number; else they are kept as logarithms.

Letters: X rows and Y columns of a block, R rows and S columns of a tile, D numbers of an embedding,
P positive pairs, Q pairs of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

SAFE = {torch.float32: 40.0, torch.float64: 300.0}
"""Similarities whose e^s, summed over any batch, neither overflows nor vanishes."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sparse (row, column) pairs of a block, sorted by the tile that they lie in."""

    starts: np.ndarray
    """Where each tile's pairs start, on the host."""
    rows: torch.Tensor
    columns: torch.Tensor
    places: torch.Tensor
    """The place of each pair in the order in which the pairs were given."""

    def of_tile(self, number: int, tile: Tile) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows and columns counted from the tile's corner, and places: [Q] each."""
        own = slice(int(self.starts[number]), int(self.starts[number + 1]))
        rows = self.rows[own] - tile.rows.start
        return rows, self.columns[own] - tile.columns.start, self.places[own]


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of a block."""

    rows: slice
    columns: slice


@dataclass(frozen=True, slots=True)
class Block:
    """A block of similarities: its shape, how it is cut, and the pairs that are no negatives."""

    shape: tuple[int, int]
    tile_shape: tuple[int, int]
    positives: Pairs
    blocked: Pairs
    """Positives and excluded pairs."""

    def tiles(self) -> Iterator[tuple[int, Tile]]:
        """All tiles with their numbers, row after row."""
        number = 0
        for first_row in range(0, self.shape[0], self.tile_shape[0]):
            rows = slice(first_row, min(first_row + self.tile_shape[0], self.shape[0]))
            for first in range(0, self.shape[1], self.tile_shape[1]):
                columns = slice(first, min(first + self.tile_shape[1], self.shape[1]))
                yield number, Tile(rows, columns)
                number += 1


@dataclass(frozen=True, slots=True)
class Weights:
    """Factors of rows or columns, given as log|factor| and sign (None: all positive)."""

    log: torch.Tensor
    sign: torch.Tensor | None = None

    def linear(self) -> torch.Tensor:
        """The factors themselves."""
        value = self.log.exp()
        return value if self.sign is None else value.mul_(self.sign)


def make_block(
    shape: tuple[int, int],
    positives: tuple[np.ndarray, np.ndarray],
    excluded: tuple[np.ndarray, np.ndarray],
    *,
    tile: int,
    device: torch.device,
) -> Block:
    """Cut a block into nearly square tiles of up to `tile` numbers and sort the pairs into them."""
    height = max(1, min(shape[0], int(tile**0.5)))
    width = max(1, min(shape[1], tile // height))
    height = max(1, min(shape[0], tile // width))
    blocked = [np.concatenate([a, b]) for a, b in zip(positives, excluded, strict=True)]
    across, down = -(-shape[1] // width), -(-shape[0] // height)

    def pairs(rows: np.ndarray, columns: np.ndarray) -> Pairs:
        number = rows // height * across + columns // width
        order = np.argsort(number, kind="stable")
        starts = np.searchsorted(number[order], np.arange(across * down + 1))
        return Pairs(starts, *(on_device(a, device) for a in (rows[order], columns[order], order)))

    return Block(shape, (height, width), pairs(*positives), pairs(*blocked))


def on_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Values on a device, without waiting for what a GPU still does."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()  # a copy from any other memory waits
    return tensor.to(device, non_blocking=True)


def log_sums(rows_XD, columns_YD, block: Block, *, safe: bool, with_columns: bool = False):
    """Log of the sums of e^s over the negatives of each row and column, and the positives' s.

    Returns [X], [Y] (or None) and [P]; -inf where there is no negative.
    """
    zero = 0.0 if safe else -torch.inf
    sums_X = rows_XD.new_full(block.shape[:1], zero)
    sums_Y = rows_XD.new_full(block.shape[1:], zero) if with_columns else None
    s_P = rows_XD.new_empty(len(block.positives.rows))
    for number, tile, s_RS in _similarities(rows_XD, columns_YD, block):
        rows_Q, columns_Q, places_Q = block.positives.of_tile(number, tile)
        s_P[places_Q] = s_RS[rows_Q, columns_Q]
        rows_Q, columns_Q, _ = block.blocked.of_tile(number, tile)
        s_RS[rows_Q, columns_Q] = -torch.inf
        if safe:
            s_RS.exp_()
        _add(sums_X[tile.rows], s_RS, 1, safe)
        if sums_Y is not None:
            _add(sums_Y[tile.columns], s_RS, 0, safe)
    if safe:
        sums_X.log_()
        sums_Y = None if sums_Y is None else sums_Y.log_()
    return sums_X, sums_Y, s_P


def _add(sums: torch.Tensor, tile_RS: torch.Tensor, dim: int, safe: bool) -> None:
    if safe:
        sums += tile_RS.sum(dim=dim)
    else:
        torch.logaddexp(sums, tile_RS.logsumexp(dim=dim), out=sums)


def add_gradients(
    rows_XD,
    columns_YD,
    block: Block,
    *,
    safe: bool,
    row_weights: Weights | None,
    column_weights: Weights | None,
    g_P: torch.Tensor,
    d_XD: torch.Tensor,
    d_YD: torch.Tensor | None = None,
) -> None:
    """Add to `d_XD` each row's Σ g · column and, if it is given, to `d_YD` the reverse.

    g = e^s (row weight + column weight) on negatives, `g_P` on positives, 0 on excluded pairs.
    """
    row_X, column_Y = (_linear(w) if safe else None for w in (row_weights, column_weights))
    work = rows_XD.new_empty(block.tile_shape[0] * block.tile_shape[1])
    for number, tile, s_RS in _similarities(rows_XD, columns_YD, block):
        other_RS = work[: s_RS.numel()].view(s_RS.shape)
        if safe:
            g_RS = _weighed(s_RS.exp_(), other_RS, row_X, column_Y, tile)
        else:
            g_RS = _weighed_logs(s_RS, other_RS, row_weights, column_weights, tile)
        rows_Q, columns_Q, _ = block.blocked.of_tile(number, tile)
        g_RS[rows_Q, columns_Q] = 0
        rows_Q, columns_Q, places_Q = block.positives.of_tile(number, tile)
        g_RS[rows_Q, columns_Q] = g_P[places_Q]
        d_XD[tile.rows].addmm_(g_RS, columns_YD[tile.columns])
        if d_YD is not None:
            d_YD[tile.columns].addmm_(g_RS.T, rows_XD[tile.rows])


def _linear(weights: Weights | None) -> torch.Tensor | None:
    return None if weights is None else weights.linear()


def _weighed(e_RS, other_RS, row_X, column_Y, tile: Tile) -> torch.Tensor:
    """e^s (row + column)."""
    if row_X is None:
        return e_RS.mul_(column_Y[tile.columns])
    if column_Y is None:
        return e_RS.mul_(row_X[tile.rows, None])
    return e_RS.mul_(torch.add(row_X[tile.rows, None], column_Y[tile.columns], out=other_RS))


def _weighed_logs(s_RS, other_RS, rows: Weights | None, columns: Weights | None, tile: Tile):
    """The same from logarithms: s may be too large for e^s, but each product is at most ~1."""
    g_RS = other_RS.zero_()
    for weights, at in ((columns, tile.columns), (rows, (tile.rows, None))):
        if weights is None:
            continue
        e_RS = (s_RS + weights.log[at]).exp_()
        g_RS += e_RS if weights.sign is None else e_RS.mul_(weights.sign[at])
    return g_RS


def _similarities(rows_XD, columns_YD, block: Block) -> Iterator[tuple[int, Tile, torch.Tensor]]:
    """Each tile's similarities, in memory that the next tile takes over."""
    buffer = rows_XD.new_empty(block.tile_shape[0] * block.tile_shape[1])
    for number, tile in block.tiles():
        rows_RD, columns_SD = rows_XD[tile.rows], columns_YD[tile.columns]
        s_RS = buffer[: len(rows_RD) * len(columns_SD)].view(len(rows_RD), len(columns_SD))
        yield number, tile, torch.mm(rows_RD, columns_SD.T, out=s_RS)
