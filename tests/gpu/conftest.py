"""What the tests on a GPU share: the GPU, or the pretended one where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.clocks import Gpu
from tests.gpu.pretend import pretended

REAL = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def pretence() -> Iterator[Gpu | None]:
    """The pretended GPU, which must find no fault; None on a real one."""
    if REAL:
        yield None
        return
    with pretended() as gpu:
        yield gpu
    assert not gpu.faults


@pytest.fixture
def real_gpu() -> None:
    """Skip where the GPU is pretended: the test is about time, kernels, NCCL or NVDEC."""
    if not REAL:
        pytest.skip("a pretended GPU cannot show it")


@pytest.fixture
def exact_multiplications() -> Iterator[None]:
    """TF32 rounds inputs to 10 bits, which is not what these tests are about."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    yield
    matmul.allow_tf32 = before
