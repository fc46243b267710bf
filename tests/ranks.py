"""Run a function on several gloo ranks, each a spawned process, under a hard time limit."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from trainer import distributed
from trainer.distributed import World


def free_port() -> int:
    """A port that was free a moment ago, of those that Linux gives to nobody who names none."""
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def run_ranks(
    work: Callable[[World, object], object],
    size: int,
    argument: object,
    folder: Path,
    *,
    seconds: float = 90,
) -> list[object]:
    """What `work(world, argument)` returned on each rank; a rank that hangs or fails fails.

    Where another test took the port first, all is tried again, once.
    """
    codes = _exit_codes(work, size, argument, folder, seconds)
    if codes[0] == errno.EADDRINUSE:
        codes = _exit_codes(work, size, argument, folder, seconds)
    assert codes == [0] * size, f"exit codes {codes}"
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(size)]


def _exit_codes(work, size: int, argument: object, folder: Path, seconds: float) -> list[int]:
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
        if processes[0].exitcode == errno.EADDRINUSE:  # the others would wait in vain
            break
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    codes = [process.exitcode for process in processes]
    assert not late or codes[0] == errno.EADDRINUSE, f"ranks {late} still ran after {seconds} s"
    return codes


def _rank(work, rank: int, size: int, port: int, argument: object, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    try:
        world = distributed.start("gloo", timeout_seconds=60)
    except ConnectionError as error:
        if "address already in use" in str(error):
            sys.exit(errno.EADDRINUSE)
        raise
    torch.save(work(world, argument), folder / f"rank-{rank}.pt")
    distributed.stop(world)
