"""What a run leaves behind when its numbers are no longer finite, for `trainer.replay`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from pipeline.formats.files import whole_file, write_json
from pipeline.formats.tensors import tensor_bytes
from trainer.batch import Batch
from trainer.cli import forbid_restarts
from trainer.run import Run

INPUTS = ("plan", "bags", "shards", "vocabulary")
"""The arguments of a run that name what it reads."""


def stop_not_finite(run: Run, batch: Batch, what: str, *, everywhere: bool = True) -> NoReturn:
    """Leave what a replay needs in the run folder and end all ranks before the update.

    Raises:
        ValueError: always, on rank 0; where not all ranks know (`everywhere` false), on this one.
    """
    settings, world = run.settings, run.world
    path = run.folder / f"not-finite-step-{batch.step}-rank-{world.rank}.json"
    weights = path.with_name(f"not-finite-step-{batch.step}-rank-{world.rank}.pt")
    content = {
        "step": batch.step,
        "what": what,
        "clip_ids": batch.clip_ids_B.tolist(),
        "caption_ids": batch.caption_ids_N.tolist(),
        "settings": asdict(settings),
        "inputs": {name: str(Path(getattr(run.arguments, name)).absolute()) for name in INPUTS},
        "bad_shards": sorted(run.data.bad),
        "weights": weights.name,
    }
    if world.first or not everywhere:
        with whole_file(weights) as scratch:
            state = {name: value.cpu() for name, value in run.model.state_dict().items()}
            scratch.write_bytes(tensor_bytes(state))
    write_json(path, content)
    low = "" if settings.precision == "fp32" else f", or precision {settings.precision}"
    line = (
        f"step {batch.step}: {what}; the weights are those of the step before. To find the cause:"
        f" python -m trainer.train --replay {path}. Usual causes: lr {settings.lr:g} too high,"
        f" temperature {settings.temperature:g} too low{low}"
    )
    forbid_restarts()
    if everywhere:
        world.fail(line)
    raise ValueError(f"rank {world.rank}: {line}")
