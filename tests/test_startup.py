"""What each command loads before it does anything: a job of seconds should not start for seconds.

`python -m tests.test_startup` prints CPU seconds and peak MB of each command's `--help`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    "av", "ijson", "jinja2", "matplotlib", "pandas", "pyarrow", "sklearn", "snakemake",
    "torch", "webdataset",
)  # fmt: skip
"""Libraries that take a tenth of a second, or tens of MB; charset_normalizer and numpy do not."""
CAPTIONS = {"ijson", "pyarrow"}
LOADED = {
    "pipeline.settings": set(),
    "pipeline.plan": CAPTIONS,
    "pipeline.manifest": {"pyarrow"},
    "pipeline.captions": CAPTIONS,
    "pipeline.encode": {"av", "pyarrow"},
    "pipeline.rejected": {"pyarrow"},
    "pipeline.vocabulary": {"pyarrow"},
    "pipeline.bags": {"pyarrow"},
    "pipeline.report": {"av", "jinja2", "pandas", "pyarrow"},
    "pipeline.demo": {"av", "pyarrow"},
    "pipeline.demo_script": set(),
    "pipeline.tools.catalog": CAPTIONS,
    "pipeline.tools.convert": {"pyarrow", "torch", "webdataset"},
    "pipeline.tools.estimate": {"av", "pyarrow"},
    "pipeline.tools.info": {"pyarrow"},
    "pipeline.tools.verify": {"pyarrow"},
    "trainer.settings": set(),
    "trainer.launch": set(),
    "trainer.train": {"pyarrow", "torch"},
    "trainer.evaluate": {"pyarrow", "torch"},
    "trainer.probe": {"pyarrow"},
    "trainer.embeddings": {"pyarrow", "torch"},
    "trainer.search": {"pyarrow", "torch"},
    "trainer.tools.check_gradients": {"torch"},
    "trainer.tools.compare": set(),
    "trainer.tools.scaling": {"pyarrow", "torch"},
}
"""What each command loads for its `--help`, and so for whatever it does."""
HELP = f"""
import json, resource, runpy, sys
name, sys.argv = sys.argv[1], [sys.argv[1], "--help"]
try:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
except SystemExit:
    pass
used = resource.getrusage(resource.RUSAGE_SELF)
loaded = [library for library in {HEAVY} if library in sys.modules]
told = [loaded, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6]
sys.stderr.write(json.dumps(told))
"""


def help_of(command: str, root: Path = ROOT) -> tuple[list[str], float, float]:
    """The heavy libraries, CPU seconds and peak MB of a command's `--help` in a fresh process."""
    argv = [sys.executable, "-c", HELP, command]
    done = subprocess.run(argv, cwd=root, check=True, capture_output=True, text=True)
    return tuple(json.loads(done.stderr.splitlines()[-1]))


def test_every_command_is_listed():
    files = [path for room in ("pipeline", "trainer") for path in (ROOT / room).rglob("*.py")]
    commands = [path for path in files if 'if __name__ == "__main__"' in path.read_text()]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in commands}
    assert names == LOADED.keys()


@pytest.mark.parametrize("command", LOADED)
def test_a_command_starts_with_what_it_needs_and_nothing_else_that_is_heavy(command):
    assert set(help_of(command)[0]) == LOADED[command]


def main(root: Path, repeats: int = 5) -> None:
    """Print the median of some turns of all commands."""
    turns = [{command: help_of(command, root) for command in LOADED} for _ in range(repeats)]
    for command in LOADED:
        seconds, megabytes = (statistics.median(t[command][k] for t in turns) for k in (1, 2))
        sys.stdout.write(f"| `{command}` | {seconds:.2f} | {megabytes:.0f} |\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
