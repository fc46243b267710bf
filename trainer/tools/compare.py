"""Name the first thing in which two runs differ: settings, data, machine, or the first numbers.

Reads   start-step-*.json of two run folders (results/train/state-*)
Writes  what differs to standard output, the first cause first; exit status 1 when anything does
By hand `python -m trainer.tools.compare RUN_A RUN_B`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import read_json
from trainer.cli import run

ORDER = (
    "trainer_version", "seed", "settings", "bags", "left_out", "fixed_batch.shapes",
    "fixed_batch.inputs", "fixed_batch.weights", "fixed_batch.embeddings", "fixed_batch.loss",
    "fixed_batch.gradients", "backend", "world", "machines", "step", "command",
)  # fmt: skip
"""Causes before what they cause."""


def read_start(folder: str | Path) -> dict:
    """The record of a run's first start; `folder` may also be the record itself."""
    path = Path(folder)
    if path.is_dir():
        records = sorted(path.glob("start-step-*.json"))
        if not records:
            runs = sorted(str(run.parent) for run in path.glob("*/start-step-*.json"))
            named = f", such as {runs[-1]}" if runs else ""
            raise FileNotFoundError(
                f"{path} holds no start-step-*.json: name a run's own folder{named}"
            )
        path = records[0]
    record = read_json(path)
    if not isinstance(record, dict) or "fixed_batch" not in record:
        raise ValueError(f"{path} is no record of a start")
    return record


def differences(first: dict, second: dict) -> list[str]:
    """Lines that name what differs, in the order of `ORDER`."""
    lines = []
    for name in ORDER:
        values: list[Any] = [first, second]
        for key in name.split("."):
            values = [value.get(key) for value in values]
        for place, left, right in _leaves(name, *values):
            if left != right:
                lines.append(f"{place}: {left} | {right}")
    return lines


def _leaves(place: str, left: object, right: object) -> Iterator[tuple[str, object, object]]:
    """All pairs of values at the same place of two JSON values."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            yield from _leaves(f"{place}.{key}", left.get(key), right.get(key))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, pair in enumerate(zip(left, right, strict=True)):
            yield from _leaves(f"{place}[{number}]", *pair)
    else:
        yield place, left, right


def main(argv: list[str] | None = None) -> None:
    """Print what differs."""
    parser = CommandLine(
        prog="python -m trainer.tools.compare",
        description="Two run folders in; out what differs between their starts, the first cause"
        " first. Exit status 1 when anything does.",
    )
    parser.add_argument("first", help="a folder results/train/state-*")
    parser.add_argument("second", help="another")
    arguments = parser.parse_args(argv)
    lines = differences(read_start(arguments.first), read_start(arguments.second))
    if not lines:
        sys.stdout.write("the two starts are equal\n")
        return
    sys.stdout.write(f"first difference: {lines[0]}\n")
    sys.stdout.write("".join(f"also: {line}\n" for line in lines[1:]))
    sys.exit(1)


if __name__ == "__main__":
    run(main)
