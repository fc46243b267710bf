"""What the benchmarks share: the machine's name, work measured by turns, and tables.

Machines are shared and differ. So sides are compared by turns, each in a process of its own on one
thread, in CPU time, which a busy neighbour hardly moves; wall time is for what overlaps alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection

GIGABYTE = 1e9

Work = Callable[[], Callable[[], object]]
"""Makes the inputs and returns what is to be measured."""


def begin(parser: argparse.ArgumentParser, argv: list[str] | None = None) -> argparse.Namespace:
    """Parse a benchmark's flags, `--quick` among them, and print what its figures are from."""
    parser.add_argument("--quick", action="store_true", help="small inputs: does it run?")
    arguments = parser.parse_args(argv)
    say(machine())
    return arguments


def machine() -> str:
    """The processor, and the versions."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0] if names else platform.machine()
    versions = f"Python {platform.python_version()}, torch {version('torch')}, av {version('av')}"
    return (
        f"{len(os.sched_getaffinity(0))} cores of {processor}, {memory:.0f} GiB,"
        f" load {os.getloadavg()[0]:.1f} at the start; {versions}"
    )


def say(line: str) -> None:
    """Print a line now: a figure takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def measure(*works: Work, repeats: int = 1) -> list[dict]:
    """Run the works by turns, `repeats` times; of each its least CPU seconds, peak GB, last result.

    The GB are those above its inputs. What memory does not suffice for has no numbers.
    """
    sides = [_Side(work) for work in works]
    for side in sides:
        side.answer()  # its inputs are there
    for _ in range(repeats):
        for side in sides:
            side.run()
    return [side.end() for side in sides]


class _Side:
    """A piece of work in its process, and the best of its turns."""

    def __init__(self, work: Work):
        # Forked from a server that has done nothing but import torch, which takes seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_child, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.best = {"seconds": float("inf"), "gigabytes": 0.0, "result": None}

    def run(self) -> None:
        """A turn."""
        try:
            self.pipe.send("run")
        except OSError:
            return
        if found := self.answer():
            seconds, gigabytes, result = found
            self.best["seconds"] = min(seconds, self.best["seconds"])
            self.best["gigabytes"] = max(gigabytes, self.best["gigabytes"])
            self.best["result"] = result

    def answer(self) -> tuple | None:
        """What the process says next; None: that it is ready, or it is dead."""
        try:
            return self.pipe.recv()
        except EOFError:
            nothing = float("nan")
            self.best = {"seconds": nothing, "gigabytes": nothing, "result": "out of memory"}
            return None

    def end(self) -> dict:
        """Let the process end; what `measure` returns of it."""
        self.pipe.close()
        self.process.join()
        return self.best


def _child(work: Work, pipe: Connection) -> None:
    # Not at the top: `dag` lends its own peak of memory to the processes that it measures.
    import torch

    torch.set_num_threads(1)
    run = work()
    before = _resident()
    pipe.send(None)
    try:
        while pipe.recv():
            pipe.send(_turn(run, before))
    except EOFError:
        return


def _turn(run: Callable[[], object], before: float) -> tuple[float, float, object]:
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.process_time()
    result = run()
    seconds = time.process_time() - began
    done.set()
    watcher.join()
    return seconds, max(peak[0], _resident()) - before, result


def _resident() -> float:
    """GB of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / GIGABYTE


def table(rows: list[list[object]]) -> str:
    """Rows, the first being the heading, as a Markdown table."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"
