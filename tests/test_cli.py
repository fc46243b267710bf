"""How the commands of both packages end: in one line and 1, in 130, or in a traceback of ours."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.cli import FAULT_FILE, speak_as, tell_launcher

ROOT = Path(__file__).resolve().parents[1]
RUNS = ["pipeline.cli", "trainer.cli"]


def ended(module: str, body: str) -> tuple[int, str]:
    """Exit status and stderr of a command whose main is `body`."""
    code = f"import logging\nfrom {module} import run\ndef main():\n    {body}\nrun(main)"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", RUNS)
@pytest.mark.parametrize("error", ["ValueError", "FileNotFoundError", "OSError"])
def test_what_people_can_mend_is_one_line_and_1(module, error):
    status, text = ended(module, f"raise {error}('a line\\n   and its\\tend')")
    assert status == 1
    assert re.fullmatch(r"\d\d:\d\d:\d\d ERROR a line and its end\n", text)


@pytest.mark.parametrize("module", RUNS)
def test_a_broken_promise_of_ours_shows_its_place(module):
    status, text = ended(module, "assert False, 'never'")
    assert status == 1
    assert text.startswith("Traceback")
    assert text.endswith("AssertionError: never\n")


@pytest.mark.parametrize("module", RUNS)
def test_ctrl_c_and_a_good_end(module):
    assert ended(module, "raise KeyboardInterrupt") == (130, "")
    status, text = ended(module, "logging.info('done'), logging.debug('unseen')")
    assert status == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO done\n", text)


def test_what_a_rank_holds_is_gone_before_the_interpreter_ends():
    """A process group that lives on until then aborts the rank at times."""
    body = (
        "import atexit, sys; atexit.register(lambda: sys.stderr.write('exit\\n'))\n"
        "    class Group:\n"
        "        def __del__(self): sys.stderr.write('gone\\n')\n"
        "    held = Group(); held.cycle = held; sys.exit(7)"
    )
    assert ended("trainer.cli", body) == (7, "gone\nexit\n")


def test_a_rank_leaves_its_fault_to_the_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv(FAULT_FILE, str(tmp_path / "fault"))
    assert ended("trainer.cli", "raise ValueError('rank 1:\\nno file')")[0] == 1
    tell_launcher("another")
    assert (tmp_path / "fault").read_text() == "rank 1: no file\nanother\n"
    monkeypatch.setenv(FAULT_FILE, str(tmp_path / "of another node/fault"))
    tell_launcher("unheard")


def test_ranks_above_0_tell_of_trouble_alone(monkeypatch):
    root = logging.Logger("root")
    root.addHandler(logging.NullHandler())
    root.setLevel(logging.INFO)
    monkeypatch.setattr("trainer.cli.logging.getLogger", lambda: root)
    speak_as(0)
    assert root.level == logging.INFO
    speak_as(3)
    assert root.level == logging.WARNING
    record = logging.LogRecord("x", logging.WARNING, "", 0, "slow", None, None)
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING rank 3: slow", root.handlers[0].format(record))


PARENT = """
import subprocess, sys, time
child = "import time; from trainer import PARENT; from trainer.cli import die_with_parent"
child += "; die_with_parent(PARENT)"
child += "; print('ready', flush=True); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells of a parent's death")
def test_a_child_dies_with_its_parent_however_that_dies():
    """The parent's stderr is shared with the child and ends when both are gone."""
    argv = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert int(parent.stdout.readline()) > 0
    parent.send_signal(signal.SIGKILL)
    assert parent.communicate(timeout=30)[1] == ""


def test_a_child_whose_parent_died_before_it_could_ask_says_so():
    body = f"import trainer.cli as cli; cli.die_with_parent({os.getppid()})"
    status, text = ended("trainer.cli", body)
    assert status == 1
    assert f"process {os.getppid()}, which started this one, is gone" in text
