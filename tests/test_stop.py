"""Runs of several ranks that are told to stop, or killed, at any moment lose nothing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from tests.synthetic_bags import Results, results_with
from tests.training_runs import (
    checkpoint_steps,
    descendants,
    finish,
    launcher,
    logged_step,
    losses,
    ranks_alone,
    ranks_below,
    wait_for_step,
    wait_until,
    weights,
)
from trainer.train import main

STEPS = 160
LONG = {"epochs": 80}
RARELY = {"save_every": 10**6}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Results:
    """A run of two ranks that nothing disturbed."""
    results = results_with(tmp_path_factory.mktemp("uninterrupted"), **LONG)
    status, text = finish(launcher(results, 2))
    assert status == 0, text
    assert max(losses(results)) == STEPS
    return results


def assert_same_end(results: Results, expected: Results) -> None:
    """The same loss at each step and the same weights, to the last bit."""
    assert losses(results) == losses(expected)
    for name, value in weights(expected).items():
        assert torch.equal(value, weights(results)[name]), name


@pytest.mark.timeout(300)
def test_a_signal_to_one_rank_saves_at_one_step_and_ends_all_ranks_with_143(
    uninterrupted, tmp_path
):
    results = results_with(tmp_path, **LONG)
    for told, number in ((1, signal.SIGUSR1), (0, signal.SIGTERM)):
        ranks = ranks_alone(results, 2, **RARELY)
        before = logged_step(results)
        wait_until(lambda before=before: logged_step(results) > before + 3, ranks[0])
        ranks[told].send_signal(number)
        ends = [finish(rank, 60) for rank in ranks]
        assert [status for status, _ in ends] == [143, 143], ends
        step = checkpoint_steps(results)[-1]
        assert f"told to stop: saved step {step} of {STEPS}" in ends[0][1]
        assert step == logged_step(results) > before
    assert len(checkpoint_steps(results)) == 2
    ends = [finish(rank) for rank in ranks_alone(results, 2, **RARELY)]
    assert [status for status, _ in ends] == [0, 0], ends
    assert_same_end(results, uninterrupted)


@pytest.mark.timeout(300)
def test_the_launcher_ends_with_143_whoever_was_told_and_starts_nothing_again(
    uninterrupted, tmp_path
):
    """One rank; everyone at once, as Slurm does, loaders included; the launcher alone."""
    results = results_with(tmp_path, **LONG)
    for number, whom in (
        (signal.SIGUSR1, lambda pid: ranks_below(pid)[1:]),
        (signal.SIGUSR1, descendants),
        (signal.SIGTERM, lambda pid: [pid]),
    ):
        before = logged_step(results)
        process = launcher(results, 2, max_restarts=3, workers=1, **RARELY)
        wait_until(lambda before=before: logged_step(results) > before + 3, process)
        for pid in whom(process.pid):
            os.kill(pid, number)
        status, text = finish(process, 60)
        assert status == 143, text
        assert text.count("told to stop: saved step") == 1
        assert text.strip().endswith("the ranks saved and stopped as told; a new start goes on"
                                     " from there")  # fmt: skip
        assert checkpoint_steps(results)[-1] == logged_step(results) > before
    status, text = finish(launcher(results, 2, **RARELY))
    assert status == 0, text
    assert_same_end(results, uninterrupted)


@pytest.mark.timeout(300)
def test_a_killed_rank_restarts_by_itself(uninterrupted, tmp_path):
    results = results_with(tmp_path, **LONG)
    process = launcher(results, 2, max_restarts=1)
    wait_for_step(results, 24, process)
    os.kill(ranks_below(process.pid)[0], signal.SIGKILL)
    status, text = finish(process)
    assert status == 0, text
    assert text.count("resuming from") == 1
    assert_same_end(results, uninterrupted)


def kill(process: subprocess.Popen, order: random.Random) -> None:
    """End the launcher and all below it, in any order, at once."""
    pids = descendants(process.pid)
    order.shuffle(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    finish(process)


@pytest.mark.timeout(400)
def test_a_run_killed_at_random_goes_on_with_one_two_and_four_ranks(uninterrupted, tmp_path):
    """Before its first save, between saves, in a save. BAGPIPE_KILL_SEED=n repeats a failure."""
    seed = int(os.environ.get("BAGPIPE_KILL_SEED") or random.SystemRandom().randrange(10**6))
    sys.stdout.write(f"BAGPIPE_KILL_SEED={seed}\n")
    draw, results = random.Random(seed), results_with(tmp_path / "killed", **LONG)
    every = 24

    def in_a_save() -> bool:
        saving = next(results.root.glob("train/state-*/*.checkpoint.tmp"), None)
        return saving is not None and logged_step(results) >= last

    for kind in ("early", "between", "saving"):
        # However slow this machine is to kill it, `early` is before the first save.
        process = launcher(results, 2, **(RARELY if kind == "early" else {"save_every": every}))
        if kind == "saving":
            last = max(checkpoint_steps(results)) + draw.randrange(every)
            wait_until(in_a_save, process)
        else:
            low, high = {"early": (1, 8), "between": (every + 1, 3 * every)}[kind]
            step = draw.randint(low, high)
            wait_until(lambda step=step: logged_step(results) >= step, process)
            time.sleep(draw.uniform(0, 0.05))
        kill(process, draw)
        left = [path.name for path in results.root.glob("train/state-*/*.tmp")]
        sys.stdout.write(f"{kind}: step {logged_step(results)}, unfinished {left}\n")
        assert bool(checkpoint_steps(results)) == (kind != "early")
    assert not (results.root / "train/model.pt").exists()

    expected = losses(uninterrupted)
    for size in (2, 1, 4):
        found = Results(tmp_path / f"on {size}")
        shutil.copytree(results.root, found.root)
        if size == 1:
            main(found.train_arguments())
        else:
            status, text = finish(launcher(found, size))
            assert status == 0, text
            assert "resuming from" in text
        if size == 2:
            assert_same_end(found, uninterrupted)
        assert losses(found).keys() == expected.keys()
        assert np.allclose([losses(found)[s] for s in expected], list(expected.values()), rtol=2e-3)
        for name, value in weights(uninterrupted).items():
            assert torch.allclose(value, weights(found)[name], rtol=1e-2, atol=2e-3), name
