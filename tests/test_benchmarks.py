"""Each benchmark runs: on small inputs, whose figures mean nothing, it prints the same tables."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import NAMES
from tests.benchmarks.measure import measure

ROOT = Path(__file__).resolve().parents[1]
RATIO = re.compile(r"ratio|times as fast|is of it|speed-up|cosine| / ")
"""How the benchmarks call what they compare."""


def test_every_benchmark_is_run():
    scripts = {path.stem for path in (ROOT / "tests/benchmarks").glob("*.py")}
    parts = {"__main__", "measure", "released_bags"}
    assert scripts - parts == set(NAMES)


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future]]:
    """Every benchmark, two at a time: most of the time they start processes."""

    def run(name: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--quick"]
        return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

    with ThreadPoolExecutor(2) as threads:
        yield {name: threads.submit(run, name) for name in NAMES}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_the_processor_and_its_ratios(name, runs):
    done = runs[name].result()
    assert done.returncode == 0, done.stderr[-3000:]
    machine, *lines = done.stdout.splitlines()
    assert re.match(r"\d+ cores of .+ GiB, load", machine)
    assert any(RATIO.search(line) for line in lines), done.stdout
    assert "nan" not in done.stdout


def sleeping():
    """Work that takes time and no CPU."""
    return lambda: time.sleep(1)


def allocating():
    """Work that needs 200 MB."""

    def run() -> int:
        held = bytearray(b"x" * 200_000_000)
        time.sleep(0.2)  # whoever looks at the memory needs the interpreter
        return len(held)

    return run


def failing():
    """Work that ends its process."""
    return lambda: sys.exit(1)


def test_sides_are_measured_in_cpu_time_and_memory_and_one_that_dies_has_no_figures():
    idle, large, gone = measure(sleeping, allocating, failing, repeats=2)
    assert idle["seconds"] < 0.5
    assert (large["result"], large["gigabytes"] > 0.15) == (200_000_000, True)
    assert gone["seconds"] != gone["seconds"]
