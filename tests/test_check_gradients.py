"""The tool that compares gradients on the user's own ranks: right where right, loud where wrong."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer.distributed import World
from trainer.tools.check_gradients import Batch, compare, gradients, main, report, slow_exchange

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(180)
def test_two_ranks_print_1_everywhere():
    argv = [
        sys.executable, "-m", "trainer.launch", "--nodes", "1", "--processes", "2",
        "--threads", "2", "--", "-m", "trainer.tools.check_gradients", "--backend", "gloo",
        "--megabytes", "4", "--step-seconds", "1e-6",
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^  (\S+) +(\S+) +(\S+)$", done.stdout, re.M)
    assert len(rows) == 2 * 12
    assert {(ratio, cosine) for _, ratio, cosine in rows} == {("1.000000", "1.000000")}
    assert {"log_temperature", "text.words.weight"} <= {name for name, _, _ in rows}
    assert re.search(r"^all-reduce: \d+\.\d\d GB/s$", done.stdout, re.M)
    assert done.stderr.count("4 MB of gradients take ") == 1


@pytest.mark.parametrize(
    ("megabytes", "rate", "step_seconds", "share"),
    [
        (100, 1.0, 0.5, None),
        (101, 1.0, 0.5, 20),
        (400, 0.1, 2.0, 200),
        (9999, math.inf, 1e-9, None),
    ],
)
def test_gradients_that_would_eat_the_step_are_told(megabytes, rate, step_seconds, share):
    told = slow_exchange(megabytes, rate, step_seconds)
    assert (told is None) == (share is None)
    if told:
        assert told.startswith(f"{megabytes} MB of gradients take {megabytes / 1e3 / rate:.3g} s")
        assert f"{share} % of a step of {step_seconds:g} s" in told


def test_a_wrong_gradient_is_named(capsys):
    world = World.alone()
    batch = Batch(12, world.device, torch.float64)
    expected = gradients(batch, world, torch.float64, chunk=0)
    wrong = expected | {"log_temperature": expected["log_temperature"] * 2}
    rows = {name: values for name, *values in compare(expected, wrong, world)}
    assert rows["log_temperature"] == pytest.approx([0.5, 1.0])
    off = report(batch, world, torch.float64, wrong)
    assert off == ["log_temperature (whole)", "log_temperature (in chunks)"]
    assert "OFF" in capsys.readouterr().out


def test_wrong_gradients_end_the_command_in_one_line(monkeypatch):
    monkeypatch.setattr("trainer.tools.check_gradients.report", lambda *_: ["fc (whole)"])
    with pytest.raises(
        ValueError, match=r"the gradient of fc \(whole\) is not that of one process"
    ):
        main(["--backend", "gloo", "--clips", "8"])
