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
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from trainer import PARENT, distributed
from trainer.alarms import spread
from trainer.arguments import parse, replay_path
from trainer.batch import Batch, Fault
from trainer.checkpoint import hold_folder, write_identity
from trainer.cli import AGENT, die_with_parent, end_if_restarted_in_vain, speak_as
from trainer.cli import run as run_command
from trainer.data import load_steps
from trainer.distributed import World
from trainer.guards import (
    check_same_setup,
    check_same_weights,
    exchange_headers,
)
from trainer.loading import choose_workers, clear_loader_faults, prefetched, timed
from trainer.monitor import MetricsLog, Progress
from trainer.quarantine import find_bad_shards
from trainer.record import compare_machines, describe_machine, write_start
from trainer.rehearse import rehearse
from trainer.replay import main as replay
from trainer.run import Run, open_bags, prepare, resume, save, wrapped, write_model
from trainer.signals import StopFlag, stopped_status
from trainer.step import take_step
from trainer.stopwatch import watch_backward, watch_towers
from trainer.trace import Trace
from trainer.validation import Validation
from trainer.watchdog import Watchdog

logger = logging.getLogger(__name__)


def train(run: Run, log: MetricsLog | None, stop: StopFlag) -> None:
    """All steps from the run's present one to its last, or to the one at which to stop."""
    arguments, watch, first = run.arguments, run.world.watch, run.step
    progress = Progress(run.step, run.num_steps, speaks=run.world.first)
    validation = open_validation(run) if arguments.validate_every else None
    trace = Trace(arguments.profile, run.folder, run.world.rank)
    run.meter.start_clock()
    with progress, Watchdog(run.world.rank, arguments.stall_seconds) as watchdog:
        for batch in timed(batches_of(run), watch):
            stopping = stop.raised or run.step == arguments.stop_at
            header = exchange_headers(run.world, run.step, batch, stop=stopping)
            assert isinstance(batch, Batch)  # else the exchange has ended this process
            if header.unreadable:
                run.quarantine.add(run.world, run.step, batch.unreadable)
            if header.stop:
                stop_in_order(run)
            trace.before(run.step)
            with watch.part("optimizer"):
                loss, norm = take_step(run, batch, header)
            trace.after(run.step)
            if run.step == first:
                watch.summary()  # the first step starts loaders and warms up
            else:
                run.times.add(clips=len(batch.clip_ids_B))
            run.alarms.step(norm)
            run.meter.add(loss, clips=header.clips)
            run.step, run.samples = run.step + 1, run.samples + header.clips
            progress.step()
            after_step(run, log, progress, validation, norm)
            watchdog.beat()
    trace.close()


def open_validation(run: Run) -> Validation:
    """The validation clips; a fault in one rank's share ends all ranks."""
    return run.world.agree(
        lambda: Validation(run.data.index, run.world), doing="reading the validation clips"
    )


def batches_of(run: Run) -> Iterator[Batch | Fault]:
    """The batches from the run's present step on, loaded and copied ahead."""
    device = run.world.device
    batches = load_steps(
        run.data,
        run.step,
        workers=choose_workers(run.arguments.workers, run.world),
        timeout_seconds=run.arguments.timeout_seconds,
        pin=device.type == "cuda",
    )
    # Chunks and parts of a batch are cut on the CPU.
    whole = not run.arguments.chunk and run.settings.plain_accumulation == 1
    return prefetched(batches, device, on=whole)


def after_step(
    run: Run,
    log: MetricsLog | None,
    progress: Progress,
    validation: Validation | None,
    norm: float,
) -> None:
    """What is due after a step, on all ranks alike: a log line, a validation, a checkpoint."""
    arguments, last = run.arguments, run.step == run.num_steps
    epoch, _ = run.data.schedule.epoch_of(run.step - 1)
    position = {"step": run.step, "epoch": epoch, "samples": run.samples}
    if run.step % arguments.log_every == 0 or last:
        entry: dict = position | run.meter.summary()
        entry |= {
            "lr": run.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm,
            "temperature": float(torch.as_tensor(run.model.temperature).detach()),
        }
        if run.seen is not None:  # a step had clips
            entry |= spread(run.world, *run.seen)
        entry |= run.times.line(run.world)
        entry["alarms"] = run.alarms.line(entry)
        if log:
            log.write(entry)
            progress.say(entry)
    if validation and (run.step % arguments.validate_every == 0 or last):
        with run.world.watch.part("validate"), run.meter.paused():
            validate(run, validation, log, progress, position)
    if run.step % arguments.save_every == 0 or last:
        with run.world.watch.part("save"), run.meter.paused():
            save(run)


def validate(
    run: Run,
    validation: Validation,
    log: MetricsLog | None,
    progress: Progress,
    position: dict,
) -> None:
    """Measure loss and retrieval on the validation split and keep the best model."""
    metrics = validation.measure(run.model)
    if metrics is None:
        return
    entry = position | {"split": "val"} | metrics
    better, run.best = metrics["R@10"] > run.best, max(run.best, metrics["R@10"])
    if log:
        log.write(entry)
        progress.say(entry)
        if better:
            write_model(run, run.folder / "best.pt")


def hold(run: Run) -> AbstractContextManager:
    """Rank 0 keeps other runs out of the run folder."""
    return hold_folder(run.folder) if run.world.first else nullcontext()


def open_log(run: Run, identity: dict) -> MetricsLog:
    """Begin or go on writing in the run folder."""
    if run.step == run.num_steps:
        logger.info("already trained: all %d steps are in %s", run.step, run.folder)
    write_identity(run.folder, identity)
    write_start(run, identity)
    return MetricsLog(run.folder, resumed_step=run.step)


def publish(run: Run, log: MetricsLog) -> None:
    """Write the run's outputs."""
    write_model(run, run.arguments.output)
    log.publish(run.arguments.metrics)
    log.close()


def stop_in_order(run: Run) -> None:
    """Save at the step that all ranks agreed on, and leave: as asked, or as signals ask."""
    save(run)
    logger.info("told to stop: saved step %d of %d", run.step, run.num_steps)
    distributed.stop(run.world)
    sys.exit(0 if run.step == run.arguments.stop_at else stopped_status())


def main(argv: list[str] | None = None) -> None:
    """Prepare, resume, train, publish."""
    argv = sys.argv[1:] if argv is None else argv
    if dump := replay_path(argv):
        replay(dump)
        return
    arguments = parse(argv)
    if arguments.rehearse:
        rehearse(arguments)
        return
    world = join(arguments)
    with StopFlag() as stop:
        run, identity = make_ready(arguments, world)
        with world.agree(lambda: hold(run), doing="taking the run folder"):
            run.quarantine.begin(world)
            resume(run)
            check_same_weights(world, run.model)
            run.parallel = wrapped(run)
            log = open_log(run, identity) if world.first else None
            with clear_loader_faults():
                train(run, log, stop)
            if log:
                publish(run, log)
    distributed.stop(world)


def join(arguments: argparse.Namespace) -> World:
    """Meet the other ranks; a rank ends with its launcher."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(int(os.environ.get(AGENT, PARENT)))
    end_if_restarted_in_vain()
    world = distributed.start(arguments.backend, arguments.timeout_seconds)
    speak_as(world.rank)
    on_gpu = world.device.type == "cuda"
    where = torch.cuda.get_device_name(world.device) if on_gpu else "CPU"
    logger.info("ranks: %d, device: %s", world.size, where)
    return world


def make_ready(arguments: argparse.Namespace, world: World) -> tuple[Run, dict]:
    """A run whose files, versions and settings all ranks agree on, and its identity."""
    index = world.agree(lambda: open_bags(arguments), doing="opening bag files")
    bad = find_bad_shards(index, world, hash_all=arguments.verify_shards)
    run, identity = world.agree(lambda: prepare(arguments, world, index, bad), doing="preparing")
    check_same_setup(world, identity, index.feature_dim)
    texts = world.gather_texts(json.dumps(describe_machine(world)))
    run.machines = [json.loads(text) for text in texts]
    if world.first:
        for line in compare_machines(run.machines):
            logger.warning("%s: ranks of unlike versions can hang or differ", line)
    watch_towers(run.model, world.watch)
    if world.size > 1:
        watch_backward(run.model, world.watch)
    torch.autograd.set_detect_anomaly(arguments.anomaly)
    return run, identity


if __name__ == "__main__":
    run_command(main)
