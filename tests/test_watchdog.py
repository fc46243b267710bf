"""A step that stalls leaves the stacks of all threads in the log."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(60)
def test_a_stall_dumps_the_stacks_of_all_threads():
    code = (
        "import threading, time, logging; logging.basicConfig()\n"
        "from trainer.watchdog import Watchdog\n"
        "def waits_for_nothing(): time.sleep(9)\n"
        "threading.Thread(target=waits_for_nothing, daemon=True).start()\n"
        "with Watchdog(3, 1.5) as dog:\n"
        "    dog.beat(); time.sleep(0.01); dog.beat(); time.sleep(3); dog.beat()\n"
    )
    argv = [sys.executable, "-c", code]
    text = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    assert text.count("Timeout (") == 1
    assert "waits_for_nothing" in text
    assert re.search(r"a step of rank 3 took [3-9]\.\d s, run.train.stall_seconds is 1.5", text)
