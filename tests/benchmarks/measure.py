"""Measure a piece of work in a process of its own: seconds and the memory it adds at its peak."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable

GIGABYTE = 1e9


def measure(work: Callable[[], Callable[[], object]], *, repeats: int = 1) -> dict:
    """Run `work()` for its inputs, then what it returns; best seconds, peak GB above the inputs."""
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_child, args=(work, repeats, sender), daemon=True
    )
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return {"seconds": float("nan"), "gigabytes": float("nan"), "result": "out of memory"}
    finally:
        process.join()


def _child(work, repeats: int, sender) -> None:
    run = work()
    before, seconds, peak = _resident(), [], [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    done.set()
    watcher.join()
    sender.send(
        {"seconds": min(seconds), "gigabytes": (peak[0] - before) / GIGABYTE, "result": result}
    )


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def table(rows: list[list[object]]) -> str:
    """Rows, the first being the heading, as a Markdown table."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"
