"""Who heeds SIGTERM and SIGUSR1: a rank in good order, its loaders only when it is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.signals import SIGNALS, STOP_FILE, StopFlag, sparing_children, stopped_status

ROOT = Path(__file__).resolve().parents[1]


def run_code(code: str, seconds: float = 60) -> subprocess.CompletedProcess:
    """Python in a process of its own, which signals may end."""
    argv = [sys.executable, "-c", code]
    return subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds
    )


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_raises_the_flag_and_nothing_else(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopFlag() as flag:
        assert not flag.raised
        for _ in range(2):
            signal.raise_signal(number)
        assert flag.raised
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_stop_ends_in_143_but_below_the_launcher_in_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv(STOP_FILE, raising=False)
    assert stopped_status() == 128 + signal.SIGTERM
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
    assert stopped_status() == 0
    assert (tmp_path / "stop").exists()
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "of another node/stop"))
    assert stopped_status() == 0


def test_a_signal_while_children_start_comes_through_afterwards():
    with StopFlag() as flag:
        with sparing_children():
            signal.raise_signal(signal.SIGTERM)
            assert not flag.raised
            code = "import signal; print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
            blocked = run_code(code).stdout.split()
        assert flag.raised
    assert {str(int(number)) for number in SIGNALS} <= set(blocked)


LOADER = """
import os, signal, time
from trainer import signals
signals.LOADER_SECONDS = {seconds}
signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
{start}
os.kill(os.getpid(), signal.{number})
time.sleep(0.2)
print("goes on", flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGUSR1"])
def test_a_loader_goes_on_after_a_signal_but_not_for_ever(number):
    """SIGUSR1 is nothing to it; SIGTERM lets it go on until the alarm."""
    code = LOADER.format(seconds=1, start="signals.start_loader(0)", number=number)
    if number == "SIGUSR1":
        code = code.replace("time.sleep(30)", "raise SystemExit(7)")
    done = run_code(code)
    assert done.stdout == "goes on\n"
    assert done.returncode == (7 if number == "SIGUSR1" else -signal.SIGALRM)


def test_a_process_that_is_no_loader_dies_of_it():
    """So that the test above could fail."""
    start = "signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)"
    done = run_code(LOADER.format(seconds=1, start=start, number="SIGTERM"))
    assert (done.stdout, done.returncode) == ("", -signal.SIGTERM)
