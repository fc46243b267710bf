"""Run a function on several gloo ranks, each a spawned process, under a hard time limit."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch

from trainer import distributed
from trainer.distributed import World


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(
    work: Callable[[World, object], object],
    size: int,
    argument: object,
    folder: Path,
    *,
    seconds: float = 90,
) -> list[object]:
    """What `work(world, argument)` returned on each rank; a rank that hangs or fails fails."""
    context = multiprocessing.get_context("spawn")
    port = free_port()
    processes = [
        context.Process(target=_rank, args=(work, rank, size, port, argument, folder), daemon=True)
        for rank in range(size)
    ]
    deadline = time.monotonic() + seconds
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    assert not late, f"ranks {late} still ran after {seconds} s"
    codes = [process.exitcode for process in processes]
    assert codes == [0] * size, f"exit codes {codes}"
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(size)]


def _rank(work, rank: int, size: int, port: int, argument: object, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    world = distributed.start("gloo", timeout_seconds=60)
    torch.save(work(world, argument), folder / f"rank-{rank}.pt")
    distributed.stop(world)
