"""Who may import whom: the rules that keep the rooms of the house apart."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for room in ("pipeline", "trainer")
    for path in sorted((ROOT / room).rglob("*.py"))
}
STAGES = {
    *(f"pipeline.{name}" for name in ("plan", "manifest", "captions", "encode", "rejected")),
    *(f"pipeline.{name}" for name in ("vocabulary", "bags", "report", "demo")),
    *(f"trainer.{name}" for name in ("train", "evaluate", "probe", "embeddings", "search")),
}
DOORS = {
    "av": r"pipeline\.(video(_stream)?|packets|matroska|nvdec|painter|stills|demo)",
    "webdataset": r"pipeline\.formats\.shard_writer",
    "matplotlib": r"pipeline\.report_charts",
    "pyarrow": r"pipeline\.formats\..*",
    "pandas": r"pipeline\.report\w*",
    "torch.distributed": r"trainer\.distributed",
    "torch": r"pipeline\.(encode|encoders\..*|formats\.tensors|nvdec|nv12|swscale)|trainer\..*",
    "sklearn": r"trainer\.probe",
    "pickle": r"nothing",
}
CALLS = {
    "np.load": ["pipeline.formats.arrays"],
    "np.fromfile": [],
    "torch.load": ["pipeline.formats.tensors"],
    ".extractall": [],
    ".extract": [],
    ".unpack_archive": [],
    ".read_magic": ["pipeline.formats.arrays"],
    ".read_array_header_1_0": ["pipeline.formats.arrays"],
}
"""What trusts the header or the names within a file, and who may call it. ruff (S) refuses shells,
`eval`, pickles and YAML with tags."""


def _calls(module: str) -> set[str]:
    """What a module calls, as it is written there."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def _imports(module: str) -> set[str]:
    """Dotted names that a module imports, wherever in its code; `from a import b` gives a.b."""
    names = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            names.add("torch.distributed")
    return names


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


IMPORTS = {module: _imports(module) for module in MODULES}


def test_there_is_something_to_check():
    assert {"pipeline.settings", "trainer.settings", "pipeline.formats.files"} <= IMPORTS.keys()
    assert "pipeline.formats.files.read_json" in IMPORTS["pipeline.formats.settings"]


@pytest.mark.parametrize("module", [name for name in MODULES if _within(name, "pipeline")])
def test_pipeline_never_imports_trainer(module):
    assert [name for name in IMPORTS[module] if _within(name, "trainer")] == []


@pytest.mark.parametrize("module", [name for name in MODULES if _within(name, "trainer")])
def test_trainer_imports_only_the_formats_of_pipeline(module):
    foreign = [name for name in IMPORTS[module] if _within(name, "pipeline")]
    assert [name for name in foreign if not _within(name, "pipeline.formats")] == []


@pytest.mark.parametrize("module", [name for name in MODULES if _within(name, "pipeline.formats")])
def test_formats_import_nothing_of_pipeline_but_formats(module):
    inner = [name for name in IMPORTS[module] if _within(name, "pipeline")]
    assert [name for name in inner if not _within(name, "pipeline.formats")] == []


@pytest.mark.parametrize("module", sorted(STAGES & MODULES.keys()))
def test_stages_never_import_stages(module):
    assert [name for name in IMPORTS[module] for stage in STAGES if _within(name, stage)] == []


@pytest.mark.parametrize("library", DOORS)
def test_heavy_libraries_have_one_door(library):
    imports = {module: IMPORTS[module] - {"pickle.UnpicklingError"} for module in MODULES}
    users = [m for m in MODULES if any(_within(name, library) for name in imports[m])]
    assert [user for user in users if not re.fullmatch(DOORS[library], user)] == []


def test_the_workflow_runs_commands_and_imports_neither_room():
    files = [*(ROOT / "workflow").rglob("*.smk"), ROOT / "Snakefile", ROOT / "workflow/Snakefile"]
    assert len(files) > 10
    for file in files:
        assert not re.search(r"^\s*(import|from) (pipeline|trainer)", file.read_text(), re.M), file
        assert not re.search(r"^\s*(script|notebook|run|retries):", file.read_text(), re.M), file


@pytest.mark.parametrize("module", MODULES)
def test_nothing_happens_at_import(module):
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    calls = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Expr)]
    assert [call for call in calls[1:] if "(" in call and not call.startswith(("'", '"'))] == []
    for node in tree.body:
        allowed = (ast.For, ast.While, ast.With, ast.Try)
        assert not isinstance(node, allowed), f"line {node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_unpickled(module):
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            given = (node.arg, node.value.value)
            assert given not in {
                ("allow_pickle", True),
                ("weights_only", False),
            }, f"line {node.value.lineno}"


@pytest.mark.parametrize("call", CALLS)
def test_bytes_that_may_be_hostile_have_one_door(call):
    users = [m for m in MODULES if any(name.endswith(call) for name in _calls(m))]
    assert users == CALLS[call]


def test_no_room_is_called_utils():
    names = {path.stem for path in MODULES.values()}
    assert names & {"utils", "common", "helpers", "base", "misc"} == set()
    assert list(ROOT.glob("*.py")) == []


@pytest.mark.parametrize(
    "module", sorted(m for m in MODULES if "__main__" in MODULES[m].read_text())
)
def test_commands_say_how_they_are_run(module):
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert f"python -m {module}" in (ast.get_docstring(tree) or "")
    (main,) = [node for node in tree.body if getattr(node, "name", "") == "main"]
    assert main.end_lineno - main.lineno <= 25
    assert [argument.arg for argument in main.args.args] == ["argv"]
