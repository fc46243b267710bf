"""A rehearsal of a run: it saves, resumes, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic_bags import make_results

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(240)
def test_a_rehearsal_saves_resumes_and_leaves_nothing(tmp_path):
    results = make_results(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    argv = [sys.executable, "-m", "trainer.train", *results.train_arguments(), "--rehearse"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stderr
    assert "the rehearsal passed: 8 steps on 2 ranks, saved step-00000004" in done.stderr
    assert sorted(path for path in tmp_path.rglob("*")) == before
