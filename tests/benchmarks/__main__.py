"""All figures of the README, measured one after the other in one run.

    python -m tests.benchmarks                    (about an hour on two idle cores)
    python -m tests.benchmarks --quick            (small inputs: do they run?)
    python -m tests.benchmarks loss text_tower    (some of them)

Prints the machine, then each benchmark's tables. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import av
import torch

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "loss", "text_tower", "accumulation", "encode", "decode", "storage", "loader", "step",
    "scaling", "dag",
)  # fmt: skip
QUICK = {
    "loss": ["--clips", "512", "--sizes", "256", "512"],
    "text_tower": [],
    "accumulation": [],
    "dag": ["--videos", "12000", "--videos-per-shard", "100"],
}
"""What stands for `--quick` where a benchmark has no such flag."""


def machine() -> str:
    """What the figures are from."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = (
        f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"
    )
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, av {av.__version__}"
    return f"{processor}, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f} at the start; {versions}"


def main() -> None:
    """Run what was asked for; a benchmark that fails does not stop the others."""
    parser = argparse.ArgumentParser(description="The figures of the README, in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}: some")
    parser.add_argument("--quick", action="store_true", help="small inputs, for a look")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    say(machine())
    failed = []
    for name in arguments.names or NAMES:
        flags = QUICK.get(name, ["--quick"]) if arguments.quick else []
        say(f"\n== {name}")
        began = time.monotonic()
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *flags]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        say(f"({name}: {time.monotonic() - began:.0f} s)")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def say(line: str) -> None:
    """Print it before what the benchmarks print."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
