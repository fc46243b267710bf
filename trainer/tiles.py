"""The tiles of the loss: sums and gradients over a block of similarities that is never held whole.

A block is a rank's own rows (clips or captions) against everyone's columns (captions or clips).

Letters: X rows and Y columns of a block, R rows of a tile, D numbers of an embedding, P positive
pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sparse (row, column) pairs of a block, sorted by row, with the rows on the host as well."""

    host_rows: np.ndarray
    rows: torch.Tensor
    columns: torch.Tensor

    @classmethod
    def sorted_from(cls, rows: np.ndarray, columns: np.ndarray, device: torch.device) -> Pairs:
        """Sort by row, keeping the order within a row."""
        order = np.argsort(rows, kind="stable")
        rows, columns = rows[order], columns[order]
        return cls(rows, torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device))

    def of_rows(self, start: int, stop: int) -> tuple[slice, torch.Tensor, torch.Tensor]:
        """The pairs of rows [start, stop): their places, rows counted from `start`, columns."""
        first, last = np.searchsorted(self.host_rows, [start, stop])
        places = slice(int(first), int(last))
        return places, self.rows[places] - start, self.columns[places]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the clips × captions matrix: a rank's own rows, everyone's columns."""

    positives: Pairs
    blocked: Pairs
    """The pairs that are no negatives: positives and excluded ones."""


def log_sums(rows_XD, columns_YD, scale, block: Block, tile: int, with_columns: bool = False):
    """Log of the sums of e^s over the negatives of each row and column, and the positives' s.

    Returns [X], [Y] (or None) and [P]; -inf where there is no negative.
    """
    sums_X = rows_XD.new_full((len(rows_XD),), -torch.inf)
    sums_Y = rows_XD.new_full((len(columns_YD),), -torch.inf) if with_columns else None
    s_P = rows_XD.new_empty(len(block.positives.rows))
    for start, stop in _tiles(len(rows_XD), len(columns_YD), tile):
        s_RY = rows_XD[start:stop] @ columns_YD.T * scale
        places, rows, columns = block.positives.of_rows(start, stop)
        s_P[places] = s_RY[rows, columns]
        _, rows, columns = block.blocked.of_rows(start, stop)
        s_RY[rows, columns] = -torch.inf
        sums_X[start:stop] = s_RY.logsumexp(dim=1)
        if with_columns:
            torch.logaddexp(sums_Y, s_RY.logsumexp(dim=0), out=sums_Y)
    return sums_X, sums_Y, s_P


def gradients(
    rows_XD, columns_YD, scale, block: Block, tile: int, log_X, log_Y, g_P, with_columns=False
):
    """Σ over the columns of g · column for each row, and the reverse for each column if asked.

    g = e^s (e^log_X + e^log_Y) on negatives, `g_P` on positives, 0 on excluded pairs; a log of None
    stands for a factor of 0.
    """
    d_XD = torch.zeros_like(rows_XD)
    d_YD = torch.zeros_like(columns_YD) if with_columns else None
    for start, stop in _tiles(len(rows_XD), len(columns_YD), tile):
        s_RY = rows_XD[start:stop] @ columns_YD.T * scale
        _, rows, columns = block.blocked.of_rows(start, stop)
        s_RY[rows, columns] = -torch.inf
        g_RY = torch.zeros_like(s_RY) if log_Y is None else (s_RY + log_Y).exp_()
        if log_X is not None:
            g_RY += s_RY.add_(log_X[start:stop, None]).exp_()
        places, rows, columns = block.positives.of_rows(start, stop)
        g_RY[rows, columns] = g_P[places]
        d_XD[start:stop] = g_RY @ columns_YD
        if with_columns:
            d_YD.addmm_(g_RY.T, rows_XD[start:stop])
    return d_XD, d_YD


def _tiles(num_rows: int, num_columns: int, tile: int) -> list[tuple[int, int]]:
    step = max(1, tile // max(num_columns, 1))
    return [(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
