"""The size of the house, as CONTRIBUTING.md states it, and its mirror, the tests.

`python -m tests.test_house` measures.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LONG_FILE = 220
"""Lines; a longer file says in CONTRIBUTING.md why it is one."""
TESTED_THROUGH_OTHERS = {
    "pipeline/formats/tags.py": "test_info.py",  # five names
    "trainer/guards.py": "test_distributed.py",  # three ranks meet once, for all that they exchange
    "trainer/run.py": "test_train.py",  # what the stage keeps of a run on one rank
}
"""Modules without a file of tests by their name, and the one that covers them."""


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


def modules() -> list[str]:
    """Those that are tested, as paths below the root."""
    paths = [path.relative_to(ROOT) for path in code_files("pipeline", "trainer")]
    return [path.as_posix() for path in paths if path.name != "__init__.py"]


def file_of_tests(module: str) -> Path:
    """Where a newcomer looks for the tests of a module."""
    path = Path(module)
    name = f"formats_{path.stem}" if path.parent.name == "formats" else path.stem
    # Both packages have a probe.
    name = "probe_linear" if module == "trainer/probe.py" else name
    return ROOT / "tests" / f"test_{name}.py"


@cache
def imported_by(path: Path) -> set[str]:
    """What of the house a file imports, as paths of modules; also in code that it holds as text."""
    text = path.read_text(encoding="utf-8")
    found = set(re.findall(r"\b((?:pipeline|trainer|tests)(?:\.\w+)+)", text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    names = {"/".join(name.split(".")[:size]) for name in found for size in (2, 3)}
    return {f"{name}.py" for name in names if (ROOT / f"{name}.py").is_file()}


def reached_from(path: Path) -> set[str]:
    """All that a test file imports, and what that imports, and so on."""
    found: set[str] = set()
    ahead = imported_by(path)
    while ahead:
        found |= ahead
        ahead = {name for near in ahead for name in imported_by(ROOT / near)} - found
    return found


def test_each_module_has_a_file_of_tests_by_its_name():
    assert len(modules()) > 100
    absent = {module for module in modules() if not file_of_tests(module).exists()}
    assert absent == set(TESTED_THROUGH_OTHERS)
    assert len(absent) <= 15


def test_the_tests_of_a_module_import_or_run_it():
    for module in modules():
        through = TESTED_THROUGH_OTHERS.get(module)
        path = ROOT / "tests" / through if through else file_of_tests(module)
        assert "\ndef test_" in path.read_text(encoding="utf-8"), path
        assert module in reached_from(path), f"{path.name} never meets {module}"


def test_what_tests_share_stands_in_no_test():
    shared = re.compile(
        r"^ *(?:from tests\.test_|import tests\.test_|from tests import .*\btest_).*", re.M
    )
    for path in code_files("tests"):
        assert shared.findall(path.read_text(encoding="utf-8")) == [], path.name


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
