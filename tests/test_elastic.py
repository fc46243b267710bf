"""Nodes that come and go: several launchers on this machine, each of which stands for one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.ranks import free_port
from tests.synthetic_bags import Results, results_with, run_folder
from tests.training_runs import ROOT, descendants, logged_step
from trainer.monitor import read_metrics
from trainer.train import main

LONG = {"epochs": 10**5, "lr": 1e-4}
"""More steps than any machine does here, that forgive rounding."""
SAVE_EVERY = 20
BORING = {"save_every": SAVE_EVERY, "validate_every": 0}


class Nodes:
    """A run whose nodes come and go."""

    def __init__(self, results: Results) -> None:
        self.results, self.endpoint = results, f"127.0.0.1:{free_port()}"
        self.launchers: list[subprocess.Popen] = []
        self.first = self.add()

    def add(self) -> subprocess.Popen:
        """Another node; its stderr goes to a file, which cannot fill up as a pipe does."""
        argv = [
            sys.executable, "-m", "trainer.launch", "--nodes", "1:2", "--meet-at", self.endpoint,
            "--max-restarts", "5", "--join-seconds", "2", "--", "-m", "trainer.train",
            *self.results.train_arguments(**BORING),
        ]  # fmt: skip
        with open(self.results.root / "log", "a") as log:
            self.launchers.append(subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log))
        return self.launchers[-1]

    def starts(self) -> list[tuple[int, int]]:
        """Each start's step and number of ranks."""
        paths = sorted(self.results.root.glob("train/state-*/start-*.json"))
        found = [json.loads(path.read_text()) for path in paths]
        return [(start["step"], start["world"]) for start in found]

    def steps_since(self, number: int) -> int:
        """Steps since the start of that number, counted from 1; negative before it."""
        starts = self.starts()
        return logged_step(self.results) - starts[-1][0] if len(starts) == number else -1

    def wait_for(self, number: int, steps: int) -> None:
        """Until so many steps are done after the start of that number."""
        deadline = time.monotonic() + 150
        while self.steps_since(number) < steps:
            late = self.first.poll() is not None or time.monotonic() > deadline
            assert not late, (self.results.root / "log").read_text()
            time.sleep(0.02)


@pytest.fixture
def nodes(tmp_path):
    """A run of one node, to which others are added; nothing outlives the test."""
    run = Nodes(results_with(tmp_path / "elastic", **LONG))
    yield run
    for launcher in run.launchers:
        if launcher.poll() is None:
            kill(launcher)


def kill(node: subprocess.Popen) -> None:
    """All processes of a node at once, as by a loss of power."""
    for pid in descendants(node.pid):
        os.kill(pid, signal.SIGKILL)
    node.wait()


@pytest.mark.timeout(900)
def test_nodes_come_leave_and_die_and_each_step_has_the_loss_of_an_undisturbed_run(nodes, tmp_path):
    nodes.wait_for(1, 5)
    second = nodes.add()
    nodes.wait_for(2, 5)
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 143
    nodes.wait_for(3, 5)
    third = nodes.add()
    nodes.wait_for(4, SAVE_EVERY + 5)
    kill(third)
    reached = logged_step(nodes.results)
    nodes.wait_for(5, 5)
    nodes.first.send_signal(signal.SIGTERM)
    assert nodes.first.wait(60) == 143

    steps, worlds = zip(*nodes.starts(), strict=True)
    assert worlds == (1, 2, 1, 2, 1)
    log = (nodes.results.root / "log").read_text()
    saved = [int(step) for step in re.findall(r"told to stop: saved step (\d+)", log)]
    assert list(steps[1:4]) == saved[:3], "a node that came or left had steps done again"
    assert 0 <= reached - steps[4] <= SAVE_EVERY

    calm = results_with(tmp_path / "calm", **LONG)
    with pytest.raises(SystemExit):
        main(calm.train_arguments(**BORING, stop_at=saved[-1]))
    assert_same_lines(nodes.results, calm)


def assert_same_lines(found: Results, expected: Results) -> None:
    """The same clips and the same loss in each step, to rounding."""
    lines = [read_metrics(run_folder(results) / "metrics.jsonl") for results in (found, expected)]
    for name in ("step", "samples", "epoch"):
        assert [line[name] for line in lines[0]] == [line[name] for line in lines[1]]
    losses = np.array([[line["loss"] for line in part] for part in lines])
    assert np.median(np.abs(np.diff(losses[1]))) > 0.01  # other clips would be seen
    assert np.allclose(losses[0], losses[1], rtol=1e-4)
