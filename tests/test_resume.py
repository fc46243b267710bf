"""Runs that stop anywhere, for any reason, go on as if nothing had happened."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from tests.synthetic_bags import Results, results_with
from tests.training_runs import checkpoint_steps, finish, launcher, losses, stop_at, weights
from trainer.cli import run as run_command
from trainer.monitor import read_metrics
from trainer.train import main


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Results:
    """A run of eight steps, two an epoch, that nothing disturbed."""
    results = results_with(tmp_path_factory.mktemp("whole"))
    main(results.train_arguments(log_every=3))
    return results


def lines(results: Results) -> list[tuple]:
    entries = read_metrics(results.root / "train/metrics.jsonl")
    return [(e["step"], e["epoch"], e.get("loss"), e.get("val_loss")) for e in entries]


@pytest.mark.parametrize("step", [2, 3, 4])  # 2 and 4 end an epoch, 3 ends a log line
def test_a_resumed_run_logs_and_learns_the_same(whole, tmp_path, step):
    results = results_with(tmp_path)
    stop_at(results, step, log_every=3)
    stop_at(results, step + 3, log_every=3)
    main(results.train_arguments(log_every=3))
    assert lines(results) == lines(whole)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(results)[name]), name


@pytest.mark.timeout(300)
def test_two_then_four_then_one_rank_learn_what_one_does(whole, tmp_path):
    results = results_with(tmp_path)
    for ranks, step in ((2, 3), (4, 5)):
        status, text = finish(launcher(results, ranks, stop_at=step, log_every=3))
        assert status == 0, text
        assert checkpoint_steps(results)[-1] == step
    main(results.train_arguments(log_every=3))
    found, expected = losses(results), losses(whole)
    assert found.keys() == expected.keys()
    assert np.allclose([found[s] for s in found], [expected[s] for s in found], rtol=1e-5)
    for name, value in weights(whole).items():
        assert torch.allclose(value, weights(results)[name], atol=2e-4), name


def test_another_runs_folder_is_refused_in_one_line(whole, tmp_path):
    folder = next((whole.root / "train").glob("state-*"))
    other = results_with(tmp_path, lr=0.5)
    shutil.copytree(folder, tmp_path / "copy")
    arguments = other.train_arguments(state=tmp_path / "copy")
    with pytest.raises(SystemExit):
        run_command(lambda: main(arguments))
    with pytest.raises(ValueError, match=r"train\.lr \(0\.01 there, 0\.5 now\)"):
        main(arguments)
