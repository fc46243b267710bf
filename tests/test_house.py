"""The size of the house, as CONTRIBUTING.md states it: `python -m tests.test_house` measures."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LONG_FILE = 220
"""Lines; a longer file says in CONTRIBUTING.md why it is one."""


def code_files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def function_lengths() -> list[int]:
    """Lines of each function and method, with its docstring."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in code_files("pipeline", "trainer")
    ]
    return [
        node.end_lineno - node.lineno + 1
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]


def long_files() -> dict[str, int]:
    sizes = {
        path.relative_to(ROOT).as_posix(): num_lines(path)
        for path in code_files("pipeline", "trainer")
    }
    return {name: size for name, size in sizes.items() if size > LONG_FILE}


def test_functions_are_short():
    lengths = function_lengths()
    assert len(lengths) > 1000
    assert np.median(lengths) <= 12
    assert np.percentile(lengths, 95) <= 40


def test_each_long_file_has_its_reason():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    stated = set(re.findall(r"^\| `((?:pipeline|trainer)/[\w/]+\.py)` \|", text, flags=re.M))
    assert stated == set(long_files())


def main() -> None:
    """Print the numbers that CONTRIBUTING.md states."""
    lengths = function_lengths()
    product = sum(map(num_lines, code_files("pipeline", "trainer")))
    tests = sum(map(num_lines, code_files("tests")))
    lines = [
        f"{len(lengths):,} functions: median {np.median(lengths):.0f} lines,"
        f" 95th percentile {np.percentile(lengths, 95):.0f}",
        f"{product:,} lines of code, {tests:,} of tests: {tests / product:.2f}",
        *(f"{size} {name}" for name, size in long_files().items()),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
