"""A training run on one rank: made ready, continued from a checkpoint, saved."""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from pipeline.formats.settings import read_settings
from trainer.alarms import Alarms
from trainer.bag_index import BagIndex, files_of_plan, open_index
from trainer.checkpoint import (
    load_checkpoint,
    newest_checkpoint,
    run_folder,
    run_identity,
    save_checkpoint,
)
from trainer.data import StepData
from trainer.distributed import World, parallel
from trainer.fixed_batch import fixed_batch
from trainer.gradient_cache import GradientCache
from trainer.guards import check_same_weights
from trainer.initial_weights import start
from trainer.memory_bank import MemoryBank
from trainer.model import TwoTowers, build_model, save_model
from trainer.monitor import Meter
from trainer.optimize import make_optimizer, make_scaler
from trainer.preflight import check_device, describe_run, plan_run, read_words
from trainer.quarantine import BadShard, Quarantine
from trainer.settings import TrainSettings
from trainer.verdict import StepTimes


@dataclass(slots=True)
class Run:
    """A training run on this rank: what is fixed, then what every step changes."""

    arguments: argparse.Namespace
    settings: TrainSettings
    world: World
    data: StepData
    quarantine: Quarantine
    folder: Path
    words: list[str]
    model: TwoTowers
    parallel: nn.Module
    """The model with its gradients averaged over the ranks."""
    optimizer: torch.optim.Optimizer
    meter: Meter
    scaler: torch.amp.GradScaler
    """Of the loss in fp16; passes everything through otherwise."""
    bank: MemoryBank | None
    slow: TwoTowers | None
    """Slowly following copies of the towers that fill the bank."""
    alarms: Alarms
    cache: GradientCache | None = None
    times: StepTimes = field(default_factory=StepTimes)
    machines: list[dict] = field(default_factory=list)
    """Versions and device of each rank."""
    fixed_batch: dict = field(default_factory=dict)
    """Digests of a batch through the first weights, on rank 0."""
    seen: tuple[torch.Tensor, torch.Tensor] | None = None
    """The last step's clips and captions, for the bank and the log line."""
    unused: list[str] | None = None
    """Parameters that got no gradient."""
    step: int = 0
    """Finished optimizer steps."""
    samples: int = 0
    """Clips seen by all ranks."""
    best: float = -1.0
    """The best R@10 on the validation split."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.data.schedule.num_steps


def open_bags(arguments: argparse.Namespace) -> BagIndex:
    """Map the plan's bag files."""
    shards = files_of_plan(Path(arguments.plan), Path(arguments.bags), Path(arguments.shards))
    return open_index(shards)


def prepare(
    arguments: argparse.Namespace, world: World, index: BagIndex, bad: list[BadShard]
) -> tuple[Run, dict]:
    """Check everything that a run needs beside its shards; returns it with the run's identity."""
    settings = read_settings(TrainSettings, arguments.settings)
    check_device(settings, world.device, chunk=arguments.chunk, num_ranks=world.size)
    shards = index.shards
    quarantine = Quarantine(
        Path(arguments.state) / "quarantine.json", index, bad,
        min_clips=settings.min_clips, speaks=world.first,
    )  # fmt: skip
    index.bad = quarantine.bad
    words = read_words(arguments.vocabulary, index)
    schedule = plan_run(index, settings, world.size)
    identity = run_identity(settings, shards)
    model = build_model(
        settings,
        feature_dim=index.feature_dim,
        num_words=len(words),
        max_caption_words=index.metadata["max_caption_words"],
    )
    start(model, settings, words)
    model.to(world.device)
    data = StepData(shards, settings, schedule, rank=world.rank, size=world.size, index=index)
    chance = describe_run(data, world.size, world.device) if world.first else 0.0
    run = Run(
        arguments=arguments,
        settings=settings,
        world=world,
        data=data,
        quarantine=quarantine,
        folder=run_folder(Path(arguments.state), identity),
        words=words,
        model=model,
        parallel=model,
        optimizer=make_optimizer(model, settings),
        meter=Meter(torch.zeros((), device=world.device)),
        scaler=make_scaler(settings, world.device),
        bank=MemoryBank.of(settings, world, index.bag_size, on_cpu=arguments.bank_on_cpu),
        slow=_slow_copy(model, settings),
        alarms=Alarms(settings, chance, speaks=world.first),
    )
    if world.first:
        run.fixed_batch = fixed_batch(model, data, world.device)
    return run, identity


def _slow_copy(model: TwoTowers, settings: TrainSettings) -> TwoTowers | None:
    has_bank = settings.bank_clips or settings.bank_captions
    return copy.deepcopy(model) if has_bank and settings.bank_momentum else None


def wrapped(run: Run) -> nn.Module:
    """The model with its gradients averaged over the ranks, as the settings and flags say."""
    arguments = run.arguments
    return parallel(
        run.model,
        run.world,
        comm_hook=run.settings.comm_hook,
        bucket_cap_mb=arguments.bucket_cap_mb,
        gradient_as_bucket_view=arguments.gradient_as_bucket_view,
        find_unused_parameters=arguments.find_unused_parameters,
    )


def resume(run: Run) -> None:
    """Continue from the newest good checkpoint that rank 0 finds, if there is one."""
    world = run.world
    found = world.agree(
        lambda: newest_checkpoint(run.folder) if world.first else None, doing="reading checkpoints"
    )
    data = world.broadcast_bytes(found)
    if not data:
        return
    content = load_checkpoint(data)
    run.model.load_state_dict(content["model"])
    run.optimizer.load_state_dict(content["optimizer"])
    run.meter.restore(content["meter"])
    run.scaler.load_state_dict(content["scaler"])
    if run.bank is not None:
        run.bank.restore(content["bank"])
    if run.slow is not None:
        run.slow.load_state_dict(content["slow"])
    run.step, run.samples, run.best = content["step"], content["samples"], content["best"]


def save(run: Run) -> None:
    """Have rank 0 write a checkpoint of the finished steps; returns when it stands.

    Raises:
        ValueError: it cannot be written.
    """
    check_same_weights(run.world, run.model)
    run.world.agree(lambda: _write_checkpoint(run), doing="saving")


def _write_checkpoint(run: Run) -> None:
    """Rank 0 writes; the others have nothing to do, but learn whether it could."""
    if run.world.first:
        content = {
            "step": run.step,
            "samples": run.samples,
            "best": run.best,
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "meter": run.meter.state(),
            "scaler": run.scaler.state_dict(),
            "bank": run.bank.state() if run.bank is not None else None,
            "slow": run.slow.state_dict() if run.slow is not None else None,
        }
        save_checkpoint(run.folder, content, keep=run.arguments.keep_checkpoints)


def write_model(run: Run, path: str | Path) -> None:
    """Write a model.pt of the present weights."""
    metadata = run.data.index.metadata
    save_model(
        path,
        run.model,
        vocabulary=run.words,
        recipe=metadata["recipe"],
        step=run.step,
        max_caption_words=metadata["max_caption_words"],
    )
