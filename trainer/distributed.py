"""Ranks: their start, their end, every exchange; the only importer of torch.distributed.

One process alone is a world of size 1, in which every exchange is the identity and nothing is
initialised. Tensors on a GPU travel over NCCL; headers, keys and files over gloo on the CPU.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from trainer.cli import LOST_OTHERS, tell_launcher
from trainer.stopwatch import Stopwatch
from trainer.watchdog import give_up_after

Result = TypeVar("Result")
WHAT_TO_CHECK = (
    "Check: the ranks' own lines above (one may have died first); that the nodes reach each other"
    " and run.train.network_interface names their common network; firewalls and used ports; that"
    " every node has run.train.gpus_per_node GPUs and CUDA_VISIBLE_DEVICES shows them; torch, NCCL"
    " and driver versions (the start record names an odd rank); run.train.timeout_seconds"
)
"""For ranks that wait in vain."""
GRACE_SECONDS = 10
"""Beyond the timeouts of a start, before a rank is taken to wait for ever."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among the ranks of a run."""

    rank: int
    size: int
    device: torch.device
    cpu_group: dist.ProcessGroup | None
    """A gloo group for tensors on the CPU; None when there is one rank."""
    watch: Stopwatch = field(default_factory=Stopwatch, compare=False)
    """Of this rank's steps; every exchange counts as `gather`."""

    @classmethod
    def alone(cls, device: str = "cpu") -> World:
        """A world of one process."""
        return cls(rank=0, size=1, device=torch.device(device), cpu_group=None)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one that writes files and speaks."""
        return self.rank == 0

    def gather_rows(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """All ranks' rows in rank order: [counts[r], ...] on rank r -> [sum(counts), ...].

        Carries no gradient. Raises `ValueError` when this rank has other rows than it announced.
        """
        if rows.shape[0] != counts[self.rank]:
            raise ValueError(f"rank {self.rank} announced {counts[self.rank]} rows of {rows.shape}")
        if self.size == 1:
            return rows.detach()
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        with self.timed("gathering rows"):
            dist.all_gather(parts, padded, group=self.group_of(rows))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def gather_integers(self, values: Sequence[int]) -> np.ndarray:
        """Every rank's integers, over the CPU: [W, len(values)] int64."""
        own = torch.tensor([list(values)], dtype=torch.int64)
        return self.gather_rows(own, [1] * self.size).numpy()

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text."""
        data = torch.frombuffer(bytearray(text.encode("utf-8") + b"\0"), dtype=torch.uint8)
        counts = self.gather_integers([len(data)])[:, 0].tolist()
        everything = self.gather_rows(data, counts).numpy().tobytes()
        return everything.decode("utf-8").split("\0")[:-1]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks; carries no gradient."""
        total = values.detach().clone()
        if self.size > 1:
            with self.timed("summing"):
                dist.all_reduce(total, group=self.group_of(total))
        return total

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of each number over all ranks; carries no gradient."""
        best = values.detach().clone()
        if self.size > 1:
            with self.timed("comparing"):
                dist.all_reduce(best, op=dist.ReduceOp.MAX, group=self.group_of(best))
        return best

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Rank 0's bytes on every rank; the others' argument is ignored."""
        own = data if self.first and data is not None else b""
        if self.size == 1:
            return own
        length = self.gather_integers([len(own)])[0, 0]
        buffer = bytearray(own) if self.first else bytearray(int(length))
        tensor = torch.frombuffer(buffer or bytearray(1), dtype=torch.uint8)
        with self.exchange("broadcasting"):
            dist.broadcast(tensor, src=0, group=self.cpu_group)
        return bytes(buffer)

    def agree(self, work: Callable[[], Result], *, doing: str) -> Result:
        """Do `work` on every rank; when it fails on any, all stop, and rank 0 says why.

        Without this, a fault on one rank would leave the others waiting for it.
        """
        fault = ""
        try:
            result = work()
        except (ValueError, OSError) as error:
            fault = str(error) or type(error).__name__
        faults = self.gather_texts(fault)
        if not any(faults):
            return result
        rank = next(index for index, text in enumerate(faults) if text)
        everywhere = all(text == faults[0] for text in faults)
        if everywhere:
            return self.fail(faults[rank])
        return self.fail(f"{doing} failed on {self.name_of(rank)}: {faults[rank]}")

    def name_of(self, rank: int) -> str:
        """Which rank on which machine, for a fault that all ranks know."""
        return f"rank {rank} on {self.gather_texts(socket.gethostname())[rank]}"

    def fail(self, message: str) -> NoReturn:
        """End all ranks for a reason that all of them know; rank 0 says it. Raises `ValueError`."""
        if self.first:
            raise ValueError(message)
        tell_launcher(message)  # another machine's, which rank 0 cannot tell
        sys.exit(1)

    @contextmanager
    def exchange(self, doing: str) -> Iterator[None]:
        """Turn the loss of another rank into one clear line."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_network(error):
                raise
            first_line = str(error).strip().split("\n")[0]
            hint = f". {WHAT_TO_CHECK}" if "timed out" in first_line.lower() else ""
            raise ConnectionError(
                f"rank {self.rank} {LOST_OTHERS} while {doing}; the first rank to fail says why"
                f" ({first_line}){hint}"
            ) from None

    def timed(self, doing: str) -> AbstractContextManager:
        """An exchange whose time counts as `gather`, or as `waiting` where a part of it."""
        return _both(self.watch.part("gather", within=("waiting",)), self.exchange(doing))

    def group_of(self, tensor: torch.Tensor) -> dist.ProcessGroup | None:
        return None if tensor.is_cuda else self.cpu_group


def start(backend: str, timeout_seconds: float) -> World:
    """Join the other ranks as torchrun's environment says; without it, be alone.

    `backend` is nccl, gloo, or auto: nccl where there are GPUs.

    Raises:
        ValueError: fewer GPUs than ranks on this machine.
        ConnectionError: the other ranks cannot be reached.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    backend, device = choose_device(backend, local_rank, local_size, torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        return World(0, 1, device, None, Stopwatch(device))
    fault = f"rank {rank} of {size} could not join the others within {timeout_seconds:g} s"
    with give_up_after(2 * timeout_seconds + GRACE_SECONDS, f"{fault}. {WHAT_TO_CHECK}"):
        try:
            return _join(backend, device, timedelta(seconds=timeout_seconds))
        except (RuntimeError, ValueError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise ConnectionError(f"{fault} ({first_line}). {WHAT_TO_CHECK}") from None


def _join(backend: str, device: torch.device, timeout: timedelta) -> World:
    """Meet the other ranks where the environment says."""
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun may hand a restarted rank the store of the attempt before, in which the addresses
        # of dead ranks still stand. Where nodes come and go each start has a store of its own, and
        # those that came late count fewer attempts.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt-{attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    cpu_group = dist.group.WORLD if backend == "gloo" else dist.new_group(None, timeout, "gloo")
    return World(rank, size, device, cpu_group, Stopwatch(device))


def choose_device(
    backend: str, local_rank: int, local_size: int, num_gpus: int
) -> tuple[str, torch.device]:
    """The backend and the device of a rank on a machine with `num_gpus` GPUs."""
    if backend == "auto" and 0 < num_gpus < local_size:
        raise ValueError(
            f"{local_size} ranks on this machine and {num_gpus} GPUs that they may use: set"
            f" run.train.processes_per_node: {num_gpus}, or run.train.backend: gloo to train on the"
            " CPU"
        )
    if backend == "auto":
        backend = "nccl" if num_gpus else "gloo"
    if backend not in ("nccl", "gloo"):
        raise ValueError(f"backend is {backend!r}, allowed: 'auto', 'nccl', 'gloo'")
    if backend == "gloo":
        return backend, torch.device("cpu")
    if local_rank >= num_gpus:
        raise ValueError(
            f"nccl needs a GPU for each rank: {local_size} ranks on this machine, {num_gpus} GPUs;"
            " lower run.train.processes_per_node or set run.train.backend: gloo"
        )
    return backend, torch.device("cuda", local_rank)


def stop(world: World) -> None:
    """Leave the other ranks in good order."""
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def parallel(
    model: nn.Module,
    world: World,
    *,
    comm_hook: str = "none",
    bucket_cap_mb: int = 25,
    gradient_as_bucket_view: bool = True,
    find_unused_parameters: bool = False,
) -> nn.Module:
    """`model` with its gradients averaged over the ranks in each backward pass.

    `comm_hook` is none, bf16_compress or fp16_compress; these round what travels.
    """
    if world.size == 1:
        return model
    devices = [world.device] if world.device.type == "cuda" else None
    wrapped = nn.parallel.DistributedDataParallel(
        model,
        device_ids=devices,
        bucket_cap_mb=bucket_cap_mb,
        gradient_as_bucket_view=gradient_as_bucket_view,
        find_unused_parameters=find_unused_parameters,
    )
    if comm_hook != "none":
        hooks = {
            "bf16_compress": default_hooks.bf16_compress_hook,
            "fp16_compress": default_hooks.fp16_compress_hook,
        }
        wrapped.register_comm_hook(None, hooks[comm_hook])
    return wrapped


def count_exchanges(model: nn.parallel.DistributedDataParallel) -> list[int]:
    """A list that gets the number of gradients in each of the coming exchanges between ranks."""
    sent: list[int] = []

    def hook(_, bucket):  # DDP refuses annotations that are texts, as all are here
        sent.append(bucket.buffer().numel())
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, hook)
    return sent


def exchange_rate(world: World, megabytes: int, repeats: int = 5) -> float:
    """GB/s at which tensors of this size are summed over the ranks (size / best time)."""
    if world.size == 1:
        return math.inf
    values = torch.zeros(megabytes * 2**18, device=world.device)
    best = math.inf
    for _ in range(repeats):
        if values.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        dist.all_reduce(values, group=world.group_of(values))
        if values.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return values.numel() * values.element_size() / best / 1e9


def without_exchange(model: nn.Module) -> AbstractContextManager:
    """Forward and backward passes inside only add to this rank's gradients."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


@contextmanager
def _both(outer: AbstractContextManager, inner: AbstractContextManager) -> Iterator[None]:
    with outer, inner:
        yield


def _is_network(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in text or "nccl" in text
