"""What a run was started with, so that two runs that should be equal can be compared.

Writes  start-step-{step}.json into the run folder at each start; `trainer.tools.compare` reads two

Beside versions, devices and settings it holds the digests of `trainer.fixed_batch`.
"""

from __future__ import annotations

import os
import platform
import shlex
import socket
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.files import write_json
from trainer.distributed import World
from trainer.run import Run

VERSIONS = ("python", "torch", "numpy", "cuda", "nccl", "driver")


def describe_machine(world: World) -> dict:
    """This rank's versions and device."""
    cuda = world.device.type == "cuda"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda or "none",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "none",
        "driver": _driver() if cuda else "none",
        "device": torch.cuda.get_device_name(world.device) if cuda else platform.machine(),
        "host": socket.gethostname(),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
        "threads": torch.get_num_threads(),
    }


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().splitlines()[0].strip() if path.exists() else "unknown"


def compare_machines(machines: list[dict]) -> list[str]:
    """A line for each version in which a rank differs from most."""
    lines = []
    for name in VERSIONS:
        values = [machine[name] for machine in machines]
        usual = Counter(values).most_common(1)[0][0]
        for rank, value in enumerate(values):
            if value != usual:
                host = machines[rank]["host"]
                lines.append(f"rank {rank} on {host} has {name} {value}, most have {usual}")
    return lines


def write_start(run: Run, identity: dict) -> Path:
    """Write the record of this start; rank 0 alone, after the weights are made."""
    path = run.folder / f"start-step-{run.step:08d}.json"
    content = {
        "machines": run.machines,
        "world": run.world.size,
        "backend": "nccl" if run.world.device.type == "cuda" else "gloo",
        "seed": run.settings.seed,
        "settings": asdict(run.settings),
        "trainer_version": identity["trainer_version"],
        "bags": identity["bags"],
        "left_out": [shard.path for shard in run.quarantine.shards],
        "command": shlex.join(sys.orig_argv),
        "step": run.step,
        "fixed_batch": run.fixed_batch,
    }
    write_json(path, content)
    return path
