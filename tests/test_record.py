"""What a start records of its machines, and which of them is odd."""

from __future__ import annotations

import torch

from trainer.distributed import World
from trainer.record import compare_machines, describe_machine


def test_the_odd_rank_and_its_version_are_named():
    machines = [describe_machine(World.alone()) for _ in range(3)]
    assert compare_machines(machines) == []
    machines[2] = machines[2] | {"torch": "1.0", "host": "node7"}
    line = f"rank 2 on node7 has torch 1.0, most have {torch.__version__}"
    assert compare_machines(machines) == [line]
