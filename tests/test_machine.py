"""Devices: each job gets a GPU of its own, and a dead job keeps none."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pipeline.encode_progress import Progress
from pipeline.encoders import machine
from pipeline.encoders.machine import choose_device, keep_memory, machine_state, take_gpu

ROOT = Path(__file__).resolve().parents[1]
HOLD = """
import sys, time
from pathlib import Path
from pipeline.encoders.machine import take_gpu
print(take_gpu(["GPU-a", "GPU-b"], Path(sys.argv[1])), flush=True)
time.sleep(600)
"""
CHOOSE = """
import os, sys, time, types
import torch
# A machine with GPUs of these names, of which CUDA_VISIBLE_DEVICES shows some, as CUDA does it.
names = sys.argv[1].split(",")
shown = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(len(names)))))
seen = [names[int(number)] for number in shown.split(",")]
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: len(seen)
torch.cuda.get_device_properties = lambda number: types.SimpleNamespace(uuid=seen[number])
from pipeline.encoders.machine import choose_device
device = choose_device("auto")
print(device, seen[int(device.partition(":")[2])], flush=True)
time.sleep(600)
"""


def holder(folder: Path) -> tuple[subprocess.Popen, int]:
    """A process that holds a GPU, and the number that it got."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    return process, int(process.stdout.readline())


@contextmanager
def jobs(names: list[str], environments: list[dict[str, str]]) -> Iterator[list[subprocess.Popen]]:
    """Jobs that start at the same moment on a machine with these GPUs, and hold what they get."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CHOOSE, ",".join(names)],
            cwd=ROOT,
            env=os.environ | changes,
            stdout=subprocess.PIPE,
            text=True,
        )
        for changes in environments
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def two_gpus() -> Iterator[list[str]]:
    """Names that no other test, and no GPU of this machine, has."""
    machine_name = uuid.uuid4().hex
    yield [f"{machine_name}-0", f"{machine_name}-1"]
    for path in machine.lock_folder().glob(f"bagpipe-*{machine_name}*.lock"):
        path.unlink()


def taken(processes: list[subprocess.Popen]) -> list[str]:
    """`cuda:N`, and the GPU behind it, of each job."""
    return [process.stdout.readline().strip() for process in processes]


def test_jobs_that_start_together_take_different_gpus_whatever_their_tmpdir(two_gpus, tmp_path):
    first, second = two_gpus
    environments = [{"TMPDIR": str(tmp_path / "a")}, {"TMPDIR": str(tmp_path / "b")}]
    for k in "ab":
        (tmp_path / k).mkdir()
    with jobs(two_gpus, environments) as processes:
        assert sorted(taken(processes)) == [f"cuda:0 {first}", f"cuda:1 {second}"]


def test_a_job_takes_the_gpu_that_slurm_shows_it_and_one_without_slurm_the_other(two_gpus):
    first, second = two_gpus
    with jobs(two_gpus, [{"CUDA_VISIBLE_DEVICES": "1"}]) as in_slurm:
        assert taken(in_slurm) == [f"cuda:0 {second}"]
        with jobs(two_gpus, [{"CUDA_VISIBLE_DEVICES": "1,0"}]) as other:
            assert taken(other) == [f"cuda:1 {first}"]


def test_more_jobs_than_gpus_share_them_evenly(tmp_path, caplog):
    numbers = [take_gpu(["GPU-a", "GPU-b"], tmp_path) for _ in range(5)]
    assert numbers == [0, 1, 0, 1, 0]
    assert caplog.text.count("all 2 GPUs are taken by other jobs") == 3
    assert "sharing number 0 with 2 of them" in caplog.messages[-1]


def test_a_lock_is_no_way_to_write_somewhere_else(tmp_path):
    (tmp_path / "target").touch()
    (tmp_path / f"bagpipe-{os.getuid()}-GPU-a-0.lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        take_gpu(["GPU-a"], tmp_path)


def test_jobs_take_different_gpus_and_a_killed_job_frees_its_own(tmp_path, caplog):
    first, number = holder(tmp_path)
    try:
        assert number == 0
        # The same GPUs in another order, as CUDA_VISIBLE_DEVICES=1,0 would show them.
        assert take_gpu(["GPU-b", "GPU-a"], tmp_path) == 0
        assert take_gpu(["GPU-a", "GPU-b"], tmp_path) == 0
        assert "all 2 GPUs are taken by other jobs" in caplog.text
    finally:
        first.kill()
        first.wait()
    caplog.clear()
    assert take_gpu(["GPU-a"], tmp_path) == 0
    assert caplog.text == ""


def test_a_cpu_has_no_state_to_tell():
    assert machine_state(torch.device("cpu")) == ""


class NVMLError(Exception):
    """Stands in for pynvml's, which is no RuntimeError."""


@pytest.fixture
def gpu(monkeypatch) -> torch.device:
    """A GPU that has held 3 GiB, and whose use nobody can tell."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return torch.device("cuda:1")


def use(monkeypatch, tell) -> None:
    """Install a pynvml, and let torch ask it."""
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(NVMLError=NVMLError))
    monkeypatch.setattr(torch.cuda, "utilization", tell)


def raiser(error: Exception):
    def tell(device):
        raise error

    return tell


def test_the_line_of_a_gpu_tells_its_use_and_its_peak_memory(gpu, monkeypatch):
    use(monkeypatch, lambda device: {"cuda:1": 87}[str(device)])
    assert machine_state(gpu) == "GPU 87 % busy, peak GPU memory 3.0 GiB"
    progress = Progress([], 1.0, machine=lambda: machine_state(gpu))
    assert progress.text().endswith(", GPU 87 % busy, peak GPU memory 3.0 GiB")
    assert progress.verdict().endswith("; GPU 87 % busy, peak GPU memory 3.0 GiB")


def test_without_the_package_or_a_driver_that_tells_use_is_left_out(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "utilization", raiser(AssertionError("must not be asked")))
    assert machine_state(gpu) == "peak GPU memory 3.0 GiB"
    for error in (NVMLError("not supported"), RuntimeError("no driver"), ModuleNotFoundError()):
        use(monkeypatch, raiser(error))
        assert machine_state(gpu) == "peak GPU memory 3.0 GiB"


def test_keeping_memory_changes_no_number():
    keep_memory()
    assert float(torch.ones(10_000_000).sum()) == 10_000_000


def test_a_gpu_that_is_not_there_is_one_line():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match="--device is cuda, but no GPU"):
        choose_device("cuda")
    assert choose_device("auto") == "cpu"
