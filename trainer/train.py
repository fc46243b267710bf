"""Train the two towers with MIL-NCE, from bag files and feature shards.

Reads   settings/train.json, plan/ (which shards exist), bags/{shard}.npz, shards/{shard}.tar,
        vocabulary.txt
Writes  model.pt and metrics.jsonl at the end; checkpoints, the best model and the metrics so far in
        `--state`/state-{hash of settings and data}, from which a new start continues
By hand `python -m trainer.train --help`; on several ranks
        `python -m trainer.launch --processes 2 --threads 4 -- -m trainer.train ...`
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from trainer import distributed
from trainer.checkpoint import hold_folder, write_identity
from trainer.cli import die_with_parent, speak_as
from trainer.cli import run as run_command
from trainer.data import load_steps
from trainer.guards import (
    STOPPED,
    StopFlag,
    check_same_setup,
    check_same_weights,
    exchange_headers,
)
from trainer.monitor import MetricsLog, Progress
from trainer.run import Run, prepare, resume, save, wrapped, write_model
from trainer.step import take_step
from trainer.validation import Validation

logger = logging.getLogger(__name__)


def train(run: Run, log: MetricsLog | None, stop: StopFlag) -> None:
    """All steps from the run's present one to its last, or to the one at which to stop."""
    progress = Progress(run.step, run.num_steps, speaks=run.world.first)
    validation = Validation(run.data.index) if run.arguments.validate_every else None
    batches = load_steps(
        run.data,
        run.step,
        workers=run.arguments.workers,
        timeout_seconds=run.arguments.timeout_seconds,
        pin=run.world.device.type == "cuda",
    )
    with progress:
        waiting = time.perf_counter()
        for batch in batches:
            data_seconds = time.perf_counter() - waiting
            header = exchange_headers(run.world, run.step, batch, stop=stop.raised)
            if header.stop:
                stop_in_order(run)
            loss, norm = take_step(run, batch, header)
            run.meter.add(loss, clips=header.clips, data_seconds=data_seconds)
            run.step, run.samples = run.step + 1, run.samples + header.clips
            progress.step()
            after_step(run, log, progress, validation, norm)
            waiting = time.perf_counter()


def after_step(
    run: Run,
    log: MetricsLog | None,
    progress: Progress,
    validation: Validation | None,
    norm: float,
) -> None:
    """What is due after a step: a log line, a validation, a checkpoint."""
    arguments, last = run.arguments, run.step == run.num_steps
    epoch, _ = run.data.schedule.epoch_of(run.step - 1)
    position = {"step": run.step, "epoch": epoch, "samples": run.samples}
    if run.step % arguments.log_every == 0 or last:
        entry = position | run.meter.summary()
        entry |= {
            "lr": run.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm,
            "temperature": float(torch.as_tensor(run.model.temperature).detach()),
        }
        if log:
            log.write(entry)
            progress.say(entry)
    if validation and log and (run.step % arguments.validate_every == 0 or last):
        validate(run, validation, log, progress, position)
    if run.step % arguments.save_every == 0 or last:
        save(run)


def validate(
    run: Run, validation: Validation, log: MetricsLog, progress: Progress, position: dict
) -> None:
    """Measure retrieval on the validation split and keep the best model."""
    metrics = validation.measure(run.model, run.world.device)
    if metrics is None:
        return
    entry = position | {"split": "val"} | metrics
    log.write(entry)
    progress.say(entry)
    if metrics["R@10"] > run.best:
        run.best = metrics["R@10"]
        write_model(run, run.folder / "best.pt")


def hold(run: Run) -> AbstractContextManager:
    """Rank 0 keeps other runs out of the run folder."""
    return hold_folder(run.folder) if run.world.first else nullcontext()


def open_log(run: Run, identity: dict) -> MetricsLog:
    """Begin or go on writing in the run folder."""
    if run.step == run.num_steps:
        logger.info("already trained: all %d steps are in %s", run.step, run.folder)
    write_identity(run.folder, identity)
    return MetricsLog(run.folder, resumed_step=run.step)


def publish(run: Run, log: MetricsLog) -> None:
    """Write the run's outputs."""
    write_model(run, run.arguments.output)
    log.publish(run.arguments.metrics)
    log.close()


def stop_in_order(run: Run) -> None:
    """Save at the step that all ranks agreed on, and leave."""
    save(run)
    logger.info("told to stop: saved step %d of %d", run.step, run.num_steps)
    sys.exit(STOPPED)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.train",
        description="Bag files and feature shards in, a trained model and its metrics out. Started"
        " by trainer.launch; alone, it is one process.",
    )
    add = parser.add_argument
    add("--settings", required=True, help="settings/train.json")
    add("--plan", required=True, help="folder of the plan: which shards exist")
    add("--bags", required=True, help="folder of bag files")
    add("--shards", required=True, help="folder of feature shards")
    add("--vocabulary", required=True, help="vocabulary.txt")
    add("--state", required=True, help="folder for the run's own folder")
    add("--output", required=True, help="model.pt, written at the end")
    add("--metrics", required=True, help="metrics.jsonl, written at the end")
    add("--backend", default="auto", help="nccl, gloo or auto")
    add("--workers", type=int, default=0, help="loader processes of a rank")
    add("--chunk", type=int, default=0, help="clips that go through the towers at once, 0: all")
    add("--bank-on-cpu", type=int, default=0, help="1: keep the memory bank in CPU memory")
    add("--bucket-cap-mb", type=int, default=25, help="MB of gradients in one exchange")
    add("--gradient-as-bucket-view", type=int, default=1, help="0: keep gradients twice")
    add("--find-unused-parameters", type=int, default=0, help="1: name what gets no gradient")
    add("--save-every", type=int, default=50, help="steps between checkpoints")
    add("--keep-checkpoints", type=int, default=3, help="checkpoints that are kept")
    add("--log-every", type=int, default=5, help="steps between lines of metrics")
    add("--validate-every", type=int, default=50, help="steps between validations, 0: never")
    add("--timeout-seconds", type=float, default=600, help="longest wait for other ranks or data")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Prepare, resume, train, publish."""
    arguments = _arguments(argv)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    world = distributed.start(arguments.backend, arguments.timeout_seconds)
    speak_as(world.rank)
    with StopFlag() as stop:
        run, identity = world.agree(lambda: prepare(arguments, world), doing="preparing")
        check_same_setup(world, identity, run.data.index.feature_dim)
        with world.agree(lambda: hold(run), doing="taking the run folder"):
            resume(run)
            check_same_weights(world, run.model)
            run.parallel = wrapped(run)
            log = open_log(run, identity) if world.first else None
            train(run, log, stop)
            if log:
                publish(run, log)
    distributed.stop(world)


if __name__ == "__main__":
    run_command(main)
