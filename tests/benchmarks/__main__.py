"""All figures of the README, measured one after the other in one run.

    python -m tests.benchmarks                    (about an hour on two idle cores)
    python -m tests.benchmarks --quick            (small inputs: do they run?)
    python -m tests.benchmarks loss text_tower    (some of them)

Each prints the machine, then its tables. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.measure import say

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "loss", "text_tower", "accumulation", "encode", "decode", "storage", "loader", "step",
    "scaling", "dag",
)  # fmt: skip


def main() -> None:
    """Run what was asked for; a benchmark that fails does not stop the others."""
    parser = argparse.ArgumentParser(description="The figures of the README, in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}: some")
    parser.add_argument("--quick", action="store_true", help="small inputs, for a look")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    failed = []
    for name in arguments.names or NAMES:
        flags = ["--quick"] if arguments.quick else []
        say(f"\n== {name}")
        began = time.monotonic()
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *flags]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        say(f"({name}: {time.monotonic() - began:.0f} s)")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
