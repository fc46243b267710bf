"""A rehearsal of a run: it saves, resumes, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic_bags import make_results
from trainer.arguments import parse
from trainer.rehearse import command_line

ROOT = Path(__file__).parents[1]


def test_a_half_is_told_all_that_the_run_was_but_its_places(tmp_path):
    given = make_results(tmp_path).train_arguments(
        bank_on_cpu=1, gradient_as_bucket_view=0, workers="auto", chunk=3
    )
    line = command_line(parse([*given, "--rehearse"]), tmp_path / "x", 2, ["--stop-at", "4"])
    found = vars(parse(line[line.index("trainer.train") + 1 :]))
    changed = {
        "settings": str(tmp_path / "x/train.json"), "state": str(tmp_path / "x"),
        "output": str(tmp_path / "x/model.pt"), "metrics": str(tmp_path / "x/metrics.jsonl"),
        "log_every": 1, "save_every": 10**9, "stop_at": 4,
    }  # fmt: skip
    assert found == vars(parse(given)) | changed


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
