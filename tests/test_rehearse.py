"""A rehearsal of a run: it saves, resumes, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic_bags import make_results, results_with, train_settings
from trainer.arguments import parse
from trainer.rehearse import command_line, num_ranks

ROOT = Path(__file__).parents[1]


def test_a_half_is_told_all_that_the_run_was_but_its_places(tmp_path):
    given = make_results(tmp_path).train_arguments(
        bank_on_cpu=1, gradient_as_bucket_view=0, workers="auto", chunk=3
    )
    line = command_line(parse([*given, "--rehearse"]), tmp_path / "x", 3, ["--stop-at", "4"])
    assert line[line.index("--processes") + 1] == "3"
    found = vars(parse(line[line.index("trainer.train") + 1 :]))
    changed = {
        "settings": str(tmp_path / "x/train.json"), "state": str(tmp_path / "x"),
        "output": str(tmp_path / "x/model.pt"), "metrics": str(tmp_path / "x/metrics.jsonl"),
        "log_every": 1, "save_every": 10**9, "stop_at": 4,
    }  # fmt: skip
    assert found == vars(parse(given)) | changed


@pytest.mark.parametrize(
    ("gpus", "backend", "changes", "expected"),
    [
        (0, "auto", {}, 2),
        (1, "auto", {}, 1),
        (8, "nccl", {}, 8),
        (8, "gloo", {}, 2),
        (8, "auto", {"norm": "batch"}, 1),
    ],
)
def test_there_are_as_many_ranks_as_gpus(tmp_path, monkeypatch, gpus, backend, changes, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    arguments = parse(make_results(tmp_path).train_arguments(backend=backend))
    assert num_ranks(arguments, train_settings(**changes)) == expected


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("global_batch", "ranks", "steps"), [(12, 2, 8), (2, 1, 48)])
def test_a_rehearsal_saves_resumes_and_leaves_nothing(tmp_path, global_batch, ranks, steps):
    """A step of one visit is for one rank."""
    results = results_with(tmp_path, global_batch=global_batch)
    before = sorted(path for path in tmp_path.rglob("*"))
    argv = [sys.executable, "-m", "trainer.train", *results.train_arguments(), "--rehearse"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stderr
    told = f"the rehearsal passed: {steps} steps, ranks: {ranks}, saved step-{steps // 2:08d}"
    assert told in done.stderr
    assert sorted(path for path in tmp_path.rglob("*")) == before
