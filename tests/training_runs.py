"""Training as its own processes: started, watched, ended, and what it has left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.ranks import free_port
from tests.synthetic_bags import Results
from trainer.model import load_model
from trainer.monitor import read_metrics
from trainer.train import main

ROOT = Path(__file__).parents[1]


def weights(results: Results) -> dict[str, torch.Tensor]:
    return load_model(results.root / "train/model.pt")[0].state_dict()


def losses(results: Results) -> dict[int, float]:
    entries = read_metrics(results.root / "train/metrics.jsonl")
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def checkpoint_steps(results: Results) -> list[int]:
    files = (results.root / "train").glob("state-*/step-*.checkpoint")
    return sorted(int(path.name[5:13]) for path in files)


def launcher(results: Results, processes: int, *, max_restarts: int = 0, **flags):
    """A training process under the launcher."""
    argv = [
        sys.executable, "-m", "trainer.launch", "--processes", str(processes),
        "--threads", "2", "--max-restarts", str(max_restarts), "--", "-m", "trainer.train",
        *results.train_arguments(**flags),
    ]  # fmt: skip
    return subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str]:
    """Exit status and stderr; a run that hangs fails."""
    try:
        _, text = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, text


def descendants(pid: int) -> list[int]:
    """All processes below one, itself last."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in children for found in descendants(int(child))] + [pid]


def wait_for_step(results: Results, step: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 90
    while not (steps := checkpoint_steps(results)) or steps[-1] < step:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.01)


def stop_at(results: Results, step: int, **flags) -> None:
    with pytest.raises(SystemExit) as ended:
        main(results.train_arguments(stop_at=step, save_every=1000, **flags))
    assert ended.value.code == 0
    assert checkpoint_steps(results)[-1] == step


def wait_until(ready: Callable[[], bool], running: subprocess.Popen, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def logged_step(results: Results) -> int:
    """The last step in the metrics so far."""
    paths = results.root.glob("train/state-*/metrics.jsonl")
    return max((entry["step"] for path in paths for entry in read_metrics(path)), default=0)


def ranks_alone(results: Results, size: int, **flags) -> list[subprocess.Popen]:
    """Ranks that know each other by their environment: no launcher, no torchrun."""
    port, argv = free_port(), results.train_arguments(**flags)
    return [
        subprocess.Popen(
            [sys.executable, "-m", "trainer.train", *argv], cwd=ROOT, stderr=subprocess.PIPE,
            text=True, env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(size)
    ]  # fmt: skip


def ranks_below(pid: int) -> list[int]:
    """Processes of trainer.train below the launcher, without their loaders."""
    return [
        found
        for found in descendants(pid)
        if b"torch.distributed.run" not in (line := Path(f"/proc/{found}/cmdline").read_bytes())
        and b"trainer.launch" not in line and b"trainer.train" in line
    ]  # fmt: skip
