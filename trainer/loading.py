"""How many loader processes a rank gets, and batches that are on the GPU before they are needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import torch

from trainer.batch import Batch, Fault
from trainer.distributed import World
from trainer.stopwatch import Stopwatch
from trainer.verdict import usable_cores

MOST_WORKERS = 4
"""Of `auto`: more rarely help, since a batch is a few reads."""

logger = logging.getLogger(__name__)


def choose_workers(asked: int | str, world: World) -> int:
    """Loader processes of this rank; says where they and the threads are more than the cores.

    `auto`: the cores that this rank may use beyond those that its network computes on.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = usable_cores()
    computing = 1 if world.device.type == "cuda" else torch.get_num_threads()
    if asked == "auto":
        found = max(0, min(MOST_WORKERS, cores // ranks - computing))
        if world.first:
            logger.info("run.train.workers auto: %d on %d cores for %d ranks", found, cores, ranks)
        return found
    assert isinstance(asked, int)
    if world.first and not asked and world.device.type == "cuda":
        logger.warning(
            "run.train.workers is 0: the GPU waits while a batch is loaded, and only its copy is"
            " hidden; set it to auto"
        )
    if world.first and asked and ranks * (asked + computing) > cores:
        logger.warning(
            "%d ranks × (%d loader processes + %d threads) are more than the %d cores that they may"
            " use: lower run.train.workers to %d, or ask for more cores",
            ranks, asked, computing, cores, max(0, cores // ranks - computing),
        )  # fmt: skip
    return asked


@contextmanager
def clear_loader_faults() -> Iterator[None]:
    """Turn a loader process's death, which torch raises wherever this one is, into one line.

    Raises:
        ValueError: a loader process died.
    """
    try:
        yield
    except RuntimeError as error:
        line = str(error).splitlines()[0]
        if "DataLoader worker" not in line:
            raise
        raise ValueError(
            f"loading failed: {line} Out of memory, perhaps: lower run.train.workers. A new start"
            " goes on from the newest checkpoint"
        ) from None


def timed(batches: Iterator[Batch | Fault], watch: Stopwatch) -> Iterator[Batch | Fault]:
    """The same batches; waiting for them counts as `data`."""
    while True:
        with watch.part("data"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def prefetched(
    batches: Iterator[Batch | Fault], device: torch.device, *, on: bool
) -> Iterator[Batch | Fault]:
    """The same batches; on a GPU each is copied there while the one before it is computed."""
    if not on or device.type != "cuda":
        yield from batches
        return
    stream = torch.cuda.Stream(device)
    held = None
    for batch in batches:
        moved, copied = batch, None
        if isinstance(batch, Batch):
            with torch.cuda.stream(stream):
                moved = batch.to(device)
                copied = stream.record_event()
        if held is not None:
            yield _ready(*held)
        held = moved, copied
    if held is not None:
        yield _ready(*held)


def _ready(batch: Batch | Fault, copied: torch.cuda.Event | None) -> Batch | Fault:
    """Have the computing stream wait for this batch's copy, not for the one that follows it.

    The copies lie in the other stream's memory, which must not be taken back while in use here.
    """
    if copied is None or isinstance(batch, Fault):
        return batch
    current = torch.cuda.current_stream()
    current.wait_event(copied)
    tensors = [getattr(batch, field.name) for field in fields(batch)]
    for tensor in (*tensors, *batch.words):
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            tensor.record_stream(current)
    return batch
