"""Devices: each job gets a GPU of its own, and a dead job keeps none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from pipeline.encoders.machine import keep_memory, machine_state, take_gpu

ROOT = Path(__file__).resolve().parents[1]
HOLD = """
import sys, time
from pathlib import Path
from pipeline.encoders.machine import take_gpu
print(take_gpu(["GPU-a", "GPU-b"], Path(sys.argv[1])), flush=True)
time.sleep(600)
"""


def holder(folder: Path) -> tuple[subprocess.Popen, int]:
    """A process that holds a GPU, and the number that it got."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    return process, int(process.stdout.readline())


def test_jobs_take_different_gpus_and_a_killed_job_frees_its_own(tmp_path, caplog):
    first, number = holder(tmp_path)
    try:
        assert number == 0
        # The same GPUs in another order, as CUDA_VISIBLE_DEVICES=1,0 would show them.
        assert take_gpu(["GPU-b", "GPU-a"], tmp_path) == 0
        assert take_gpu(["GPU-a", "GPU-b"], tmp_path) in (0, 1)
        assert "all 2 GPUs are taken by other jobs" in caplog.text
    finally:
        first.kill()
        first.wait()
    caplog.clear()
    assert take_gpu(["GPU-a"], tmp_path) == 0
    assert caplog.text == ""


def test_a_cpu_has_no_state_to_tell():
    assert machine_state(torch.device("cpu")) == ""


def test_keeping_memory_changes_no_number():
    keep_memory()
    assert float(torch.ones(10_000_000).sum()) == 10_000_000
