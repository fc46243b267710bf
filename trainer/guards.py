"""What ranks tell each other before a step, and why they stop: signals, faults, ranks out of step.

Every exchange here happens on all ranks alike, so none can be left waiting.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np

from pipeline.formats.files import digest_of
from trainer.batch import Batch, Fault
from trainer.checkpoint import fingerprint
from trainer.distributed import World
from trainer.model import TwoTowers


@dataclass(frozen=True, slots=True)
class Header:
    """What all ranks know of a step before they begin it."""

    counts_W3: np.ndarray
    """[W, 3]: each rank's clips, captions and clips with a bag."""
    stop: bool
    """A rank was told to stop: all save at this step."""
    unreadable: bool = False
    """A rank left a video out that it could not read."""

    @property
    def empty(self) -> bool:
        """No rank has a clip with a bag: there is nothing to learn from."""
        return not self.counts_W3[:, 2].any()

    @property
    def clips(self) -> int:
        """Clips of the step over all ranks."""
        return int(self.counts_W3[:, 0].sum())


def exchange_headers(world: World, step: int, batch: Batch | Fault, *, stop: bool) -> Header:
    """Tell all ranks what this one is about to do.

    Raises:
        ValueError: a rank could not load its batch, or does another step than the others.
    """
    if isinstance(batch, Fault):
        row = [step, 0, 0, 0, 0, stop, True, 0]
    else:
        sizes = [len(batch.clip_ids_B), len(batch.caption_ids_N), batch.num_valid]
        row = [batch.step, batch.id_hash, *sizes, stop, False, len(batch.unreadable)]
    with world.watch.part("waiting"):
        rows_W8 = world.gather_integers([int(value) for value in row])
    if rows_W8[:, 6].any():
        if isinstance(batch, Fault):
            raise ValueError(batch.message)
        sys.exit(1)  # the rank with the fault says why
    _check_in_step(world, [tuple(row) for row in rows_W8[:, :2].tolist()])
    return Header(
        counts_W3=rows_W8[:, 2:5],
        stop=bool(rows_W8[:, 5].any()),
        unreadable=bool(rows_W8[:, 7].any()),
    )


def _check_in_step(world: World, positions_W: list[tuple[int, int]]) -> None:
    usual, count = Counter(positions_W).most_common(1)[0]
    if count == len(positions_W):
        return
    rank = next(rank for rank, position in enumerate(positions_W) if position != usual)
    step, _ = positions_W[rank]
    what = f"at step {step}" if step != usual[0] else f"at other videos of step {step}"
    world.fail(f"rank {rank} is {what} while others are at step {usual[0]}: ranks are out of step")


def check_same_setup(world: World, identity: dict, feature_dim: int) -> None:
    """Settings, data and dimensions must be the same on all ranks; the odd rank is named."""
    digest = int(digest_of([identity, feature_dim])[:15], 16)
    _check_equal(
        world,
        digest,
        "has other settings or bag files than rank 0: every node must see the same shared folder",
    )


def check_same_weights(world: World, model: TwoTowers) -> None:
    """Parameters and buffers must be the same on all ranks; the odd rank is named."""
    _check_equal(world, fingerprint(model), "has other weights than rank 0")


def _check_equal(world: World, value: int, fault: str) -> None:
    values_W = world.gather_integers([value])[:, 0]
    odd = np.flatnonzero(values_W != values_W[0])
    if len(odd):
        world.fail(f"{world.name_of(odd[0])} {fault}")
