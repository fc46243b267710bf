"""On a GPU: run the GPU tests, then the loss's figures there. A few minutes.

    python -m tests.gpu.run

Prints a table of the loss at 4,096 clips × 16 captions, 512 numbers: time and peak memory of the
tiled form in fp32 and from bf16 inputs, of the reference form, and of bare multiplications.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

from trainer.loss import mil_nce_loss

CLIPS, BAG, DIM, TEMPERATURE = 4096, 16, 512, 0.07
FOLDER = Path(__file__).parent


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips and captions of length 1."""
    torch.manual_seed(0)
    v = functional.normalize(torch.randn(CLIPS, DIM, device="cuda"), dim=1).to(dtype)
    t = functional.normalize(torch.randn(CLIPS * BAG, DIM, device="cuda"), dim=1).to(dtype)
    return v.requires_grad_(), t.requires_grad_()


def tiled(v: torch.Tensor, t: torch.Tensor, tile: int = 2**24) -> None:
    """This project's loss."""
    bags = torch.arange(len(t)).view(len(v), BAG)
    mil_nce_loss(
        v, t, bags, temperature=TEMPERATURE, largest=1.1 / TEMPERATURE, tile=tile
    ).backward()


def reference(v: torch.Tensor, t: torch.Tensor) -> None:
    """The reference MIL-NCE loss, whole."""
    x = torch.matmul(v / TEMPERATURE, t.t()).view(len(v), len(v), -1)
    own = torch.arange(len(v), device="cuda")
    nominator = torch.logsumexp(x[own, own], dim=1)
    denominator = torch.cat((x, x.permute(1, 0, 2)), dim=1).view(len(v), -1)
    (torch.logsumexp(denominator, dim=1) - nominator).mean().backward()


def multiplications(v: torch.Tensor, t: torch.Tensor) -> None:
    """Four times the product that a tile needs, nothing else."""
    with torch.no_grad():
        for _ in range(4):
            for start in range(0, len(v), 512):
                v[start : start + 512] @ t.T


def figures(work, dtype: torch.dtype) -> tuple[float, float]:
    """Best of five seconds, and the peak of GB above the inputs."""
    v, t = inputs(dtype)
    before, best = torch.cuda.memory_allocated(), float("inf")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(6):
        v.grad = t.grad = None
        torch.cuda.synchronize()
        start = time.perf_counter()
        work(v, t)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, (torch.cuda.max_memory_allocated() - before) / 1e9


def main() -> None:
    """Tests, then the table."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--timeout", "120", str(FOLDER)]
    status = subprocess.run(command, check=False).returncode
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    rows = [
        ("reference, fp32", reference, torch.float32),
        ("four products, fp32", multiplications, torch.float32),
        ("four products, bf16", multiplications, torch.bfloat16),
        *(
            (
                f"tiled, fp32, tiles of 2^{power}",
                lambda v, t, power=power: tiled(v, t, 2**power),
                torch.float32,
            )
            for power in (20, 22, 24, 26)
        ),
        ("tiled, bf16 inputs", tiled, torch.bfloat16),
    ]
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        sys.stdout.write(f"\n| TF32 {'on' if tf32 else 'off'} | ms | GB |\n|---|---|---|\n")
        for name, work, dtype in rows:
            seconds, gigabytes = figures(work, dtype)
            sys.stdout.write(f"| {name} | {1000 * seconds:.1f} | {gigabytes:.2f} |\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
