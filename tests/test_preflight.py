"""What is refused before the first step."""

from __future__ import annotations

import pytest
import torch

from tests.synthetic_bags import train_settings
from trainer.preflight import check_device


@pytest.mark.parametrize(
    ("changes", "chunk", "line"),
    [
        ({"norm": "sync_batch"}, 0, r"norm sync_batch needs GPUs.*: set train\.norm: layer"),
        ({"comm_hook": "bf16_compress"}, 0, r"needs NCCL on GPUs: set .*: fp16_compress"),
        ({"norm": "batch"}, 4, r"norm batch would see the chunks of run\.train\.chunk one by one"),
        ({"plain_accumulation": 2}, 4, "plain_accumulation is for comparison alone"),
        ({"plain_accumulation": 2, "bank_clips": 9}, 0, "plain_accumulation is for comparison"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_first_step(changes, chunk, line):
    with pytest.raises(ValueError, match=line):
        check_device(train_settings(**changes), torch.device("cpu"), chunk=chunk)
