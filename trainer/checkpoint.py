"""Checkpoints: whole or not at all, recognised by their checksum, the newest good one resumed from.

They lie in a run folder that is named by all that decides the result: the settings, this trainer's
version and the data. Changed settings or data therefore never meet an old run's checkpoints.

A checkpoint file is a line `bagpipe-checkpoint-1 {sha256}` and then what torch.save wrote.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import re
import time
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import IO

import torch

from pipeline.formats.bags import bags_digest
from pipeline.formats.files import digest_of, read_json, whole_file, write_json
from pipeline.formats.tags import CHECKPOINT
from pipeline.formats.tensors import read_tensors, tensor_bytes
from trainer.bag_index import ShardFiles
from trainer.initial_weights import digests
from trainer.settings import TrainSettings

MAGIC = CHECKPOINT.encode()
TRAINER_VERSION = 3
"""Raise it when the same settings and data would train another model: old runs are left alone."""
DAMAGED = ".damaged"
"""Suffix of a checkpoint that a start has skipped."""
_NAME = re.compile(r"step-(\d{8})\.checkpoint")

logger = logging.getLogger(__name__)


def run_identity(settings: TrainSettings, shards: list[ShardFiles]) -> dict:
    """All that decides a run's result, as JSON values."""
    deciding = asdict(settings)
    del deciding["min_clips"]  # decides whether there is a result, not which
    return {
        "settings": deciding,
        "trainer_version": TRAINER_VERSION,
        **digests(settings),
        "bags": {files.bags.stem: bags_digest(files.bags) for files in shards},
    }


def run_folder(state: Path, identity: dict) -> Path:
    """Where a run keeps its checkpoints and its metrics; `state` may be a run's own folder.

    Raises:
        ValueError: it is the folder of a run of other settings or data, which are named.
    """
    if (state / "identity.json").exists():
        refuse_other(state, read_json(state / "identity.json"), identity)
        return state
    return state / f"state-{digest_of(identity)[:16]}"


def refuse_other(folder: Path, found: dict, wanted: dict) -> None:
    """Raise `ValueError` naming what differs between a run's identity and the wanted one."""
    old, new = found["settings"], wanted["settings"]
    lines = [
        f"train.{key} ({old.get(key)!r} there, {value!r} now)"
        for key, value in new.items()
        if old.get(key) != value
    ]
    bags = found["bags"], wanted["bags"]
    names = sorted(n for n in bags[0].keys() | bags[1] if bags[0].get(n) != bags[1].get(n))
    if names:
        lines.append(f"bag files ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})")
    others = wanted.keys() - {"settings", "bags"}
    lines += [key for key in sorted(others) if found.get(key) != wanted[key]]
    if lines:
        raise ValueError(
            f"{folder} belongs to a run of other {', '.join(lines)}: set these back, or give"
            " --state its parent folder to start anew"
        )


def hold_folder(folder: Path, *, patience_seconds: float = 60.0) -> IO:
    """Keep other runs out of a run folder until the returned file is closed or this process ends.

    Raises:
        ValueError: another run still holds the folder after `patience_seconds`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "w")  # noqa: SIM115 - held by the caller
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"another training process holds {folder}: wait for it, or end it"
                ) from None
            time.sleep(0.2)
        except OSError as error:
            logger.warning("%s cannot be locked (%s): start one training at a time", folder, error)
            return lock


def write_identity(folder: Path, identity: dict) -> None:
    """Say in the folder what its run is made of."""
    write_json(folder / "identity.json", identity)


def save_checkpoint(folder: Path, content: dict, *, keep: int) -> Path:
    """Write a checkpoint of `content["step"]` steps, then remove all but the newest `keep`.

    Those that a start skipped as damaged count for nothing and go too, as do files of later steps:
    the run would have gone on from them, had they been whole. So do the halves of killed saves;
    what cannot be read counts for nothing, and stays.

    Raises:
        OSError: it cannot be written; the ones before it stay as they are.
    """
    path = folder / f"step-{content['step']:08d}.checkpoint"
    data = tensor_bytes(content)
    try:
        with whole_file(path) as scratch, open(scratch, "wb") as file:
            file.write(MAGIC + b" " + hashlib.sha256(data).hexdigest().encode() + b"\n")
            file.write(data)
            file.flush()
    except OSError as error:
        raise OSError(
            f"{path} ({len(data)} bytes) cannot be written: {error.strerror}. Make room; the"
            " checkpoints before it are whole, and a new start goes on from the newest"
        ) from None
    others = [other for other in checkpoints(folder) if other != path and _opens(other)]
    later = [other for other in others if other > path]
    for damaged in [*later, *sorted(folder.glob(f"step-*{DAMAGED}"))]:
        logger.warning("%s, damaged and skipped before, is removed: %s stands", damaged, path.name)
        damaged.unlink()
    for old in others[len(later) :][max(keep - 1, 0) :]:
        old.unlink()
    for half in folder.glob("step-*.checkpoint.tmp"):  # no other process writes in this folder
        half.unlink()
    return path


def _opens(path: Path) -> bool:
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of a run folder, newest first."""
    return sorted((p for p in folder.glob("step-*") if _NAME.fullmatch(p.name)), reverse=True)


def newest_checkpoint(folder: Path) -> bytes:
    """The bytes of the newest good checkpoint, empty if there is none.

    Damaged ones are named and get another suffix, so that none is ever kept in place of a good one.
    What cannot be read, now perhaps, is named and stays as it is.
    """
    found = checkpoints(folder)
    for path in found:
        try:
            data = path.read_bytes()
        except OSError as error:
            logger.warning(
                "%s cannot be read (%s) and is skipped: mend or remove it", path, error.strerror
            )
            continue
        if _payload(data) is not None:
            logger.info("resuming from %s", path)
            return data
        aside = path.rename(path.with_suffix(DAMAGED))
        logger.warning("%s is damaged and skipped: it is %s up to the next save", path, aside.name)
    if found:
        logger.warning("no checkpoint in %s is whole: training begins anew, at step 0", folder)
    return b""


def load_checkpoint(data: bytes) -> dict:
    """The content of a checkpoint's bytes, on the CPU; damaged ones raise `ValueError`."""
    payload = _payload(data)
    if payload is None:
        raise ValueError("a checkpoint is damaged")
    return read_tensors(io.BytesIO(payload), where="a checkpoint")


def fingerprint(model: torch.nn.Module) -> int:
    """A checksum over all parameters and buffers: equal on all ranks, or something is wrong."""
    checksum = 0
    for value in model.state_dict().values():
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(raw.numpy().data, checksum)
    return checksum


def _payload(data: bytes) -> memoryview | None:
    head, _, _ = data[:128].partition(b"\n")
    payload = memoryview(data)[len(head) + 1 :]
    if head != MAGIC + b" " + hashlib.sha256(payload).hexdigest().encode():
        return None
    return payload
