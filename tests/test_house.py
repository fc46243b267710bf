"""The size of the house, as CONTRIBUTING.md states it, and its mirror, the tests.

`python -m tests.test_house` measures.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LONG_FILE = 220
"""Lines; a longer file says in CONTRIBUTING.md why it is one."""
RUN_OR_IMPORTED = re.compile(
    r"^\s*(?:from|import) ([\w.]+)(?: import (\w+))?|-m ((?:pipeline|trainer)[\w.]*)", re.MULTILINE
)
"""In code and commands that a test holds as text."""
TESTED_THROUGH_OTHERS = {
    "pipeline/formats/tags.py": "test_info.py",  # five names
    "trainer/guards.py": "test_distributed.py",  # three ranks meet once, for all that they exchange
    "trainer/run.py": "test_train.py",  # what the stage keeps of a run on one rank
}
"""Modules without a file of tests by their name, and the one that covers them."""
TESTED_THROUGH_THEIR_CALLER = {
    "pipeline/encoders/c3d.py": "pipeline/encoders/interface.py",
    "pipeline/encoders/s3d_encoder.py": "pipeline/encoders/interface.py",
    "pipeline/encoders/torchvision_models.py": "pipeline/encoders/interface.py",
    "pipeline/formats/tags.py": "pipeline/tools/info.py",
    "trainer/loss_plan.py": "trainer/loss.py",  # what it refuses is what a caller of the loss sees
    "trainer/run.py": "trainer/train.py",
}
"""Modules that no test calls by name: the only way in is the other module, which imports them."""


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
def met_by(path: Path) -> set[str]:
    """Modules of the house that a file imports or runs, itself or in code that it holds as text."""
    found, docstrings = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Expr):
            docstrings.add(node.value)
        elif isinstance(node, ast.Constant) and node not in docstrings:
            found |= set(_met_in_text(str(node.value)))
    names = {"/".join(name.split(".")[:size]) for name in found for size in (2, 3)}
    return {f"{name}.py" for name in names if (ROOT / f"{name}.py").is_file()}


def _met_in_text(text: str) -> Iterator[str]:
    if re.fullmatch(r"(pipeline|trainer)(\.\w+)+", text):  # an argument behind -m, most likely
        yield text
    for module, name, command in RUN_OR_IMPORTED.findall(text):
        yield command or f"{module}.{name}"


def met_by_tests(path: Path) -> set[str]:
    """What a test file meets, and what the files do that tests share; nothing beyond that."""
    found: set[str] = set()
    ahead = {path.relative_to(ROOT).as_posix()}
    while ahead:
        near = {name for file in ahead for name in met_by(ROOT / file)} - found
        found |= near
        ahead = {name for name in near if name.startswith("tests/")}
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
        caller = TESTED_THROUGH_THEIR_CALLER.get(module)
        assert caller is None or module in met_by(ROOT / caller), f"{caller} never meets {module}"
        assert (caller or module) in met_by_tests(path), f"{path.name} never meets {module}"


def test_what_stands_in_no_test_is_not_met():
    found = met_by_tests(ROOT / "tests/test_house.py")
    assert found == set()
    found = met_by_tests(ROOT / "tests/test_tiles.py")
    assert {"trainer/loss.py", "trainer/tiles.py", "tests/loss_cases.py"} <= found
    assert "trainer/settings.py" not in found  # of trainer.loss's own


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
