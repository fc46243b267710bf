"""Do a step again that was not finite, to find out why.

Reads   not-finite-step-*.json and .pt of a run folder, and the bag files and shards of the run
Writes  its findings to standard output
By hand `python -m trainer.train --replay results/train/state-.../not-finite-step-7-rank-0.json`

It tries, in this order: as it was, in fp32, with a temperature of 1, and whether the bag files keep
their bounds. Each try names the first tensor that is not finite, in the order of computing.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.bags import check_bags
from pipeline.formats.files import read_json
from pipeline.formats.names import again
from pipeline.formats.settings import settings_from
from pipeline.formats.tensors import read_tensors
from trainer.bag_index import BagIndex, files_of_plan, open_index
from trainer.batch import Batch, Fault
from trainer.batch_parts import tower_input
from trainer.data import StepData
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.model import TwoTowers, build_model
from trainer.preflight import global_exclusion, plan_run, read_words
from trainer.settings import TrainSettings
from trainer.step import AUTOCAST

PLAIN = {"precision": "fp32"}
WARM = {"precision": "fp32", "temperature": 1.0, "learn_temperature": False}


def replay(path: str | Path) -> str:
    """Report on the step of a dump.

    Raises:
        ValueError: the dump or the data cannot be read, or the data is no longer the step's.
    """
    dump = read_json(path)
    if not isinstance(dump, dict) or "weights" not in dump:
        raise ValueError(f"{path} is no dump of a step: name a not-finite-step-*.json")
    settings = settings_from(TrainSettings, dump["settings"], where=str(path))
    weights = find_weights(Path(path), dump)
    state = read_tensors(weights)
    index, batch = _batch(dump, settings)
    words = read_words(dump["inputs"]["vocabulary"], index)
    lines = [f"step {dump['step']}: {dump['what']}"]
    found = {}
    for title, changes in (
        (f"as it was ({settings.precision})", {}),
        ("in fp32", PLAIN),
        ("in fp32 at temperature 1", WARM),
    ):
        model = _model(replace(settings, **changes), index, len(words), state)
        found[title] = first_not_finite(model, batch)
        if changes != PLAIN or settings.precision != "fp32":  # else it was said above
            lines.append(f"{title}: {found[title] or 'everything is finite'}")
    bounds = _bounds(index, batch)
    lines.append(f"bag files: {bounds or 'within their bounds'}")
    return "\n".join([*lines, _conclusion(list(found.values()), bounds)]) + "\n"


def find_weights(path: Path, dump: dict) -> Path:
    """The weights of a dump: beside it, or rank 0's, which wrote for all."""
    for name in (dump["weights"], dump["weights"].rsplit("-", 1)[0] + "-0.pt"):
        if (path.parent / name).exists():
            return path.parent / name
    raise FileNotFoundError(f"{path.parent / dump['weights']} is missing: a dump is both files")


def _batch(dump: dict, settings: TrainSettings) -> tuple[BagIndex, Batch]:
    """The global batch of the dump's step, as one process."""
    folders = [Path(dump["inputs"][name]) for name in ("plan", "bags", "shards")]
    shards = files_of_plan(*folders)
    index = open_index(shards, frozenset(dump["bad_shards"]))
    schedule = plan_run(index, settings, 1)
    batch = StepData(shards, settings, schedule, rank=0, size=1, index=index)[dump["step"]]
    if isinstance(batch, Fault):
        raise ValueError(batch.message)
    missing = set(dump["clip_ids"]) - set(batch.clip_ids_B.tolist())
    if missing:
        raise ValueError(f"the bag files changed since: clip {min(missing)} is not in the step")
    return index, batch


def _model(settings: TrainSettings, index: BagIndex, num_words: int, state: dict) -> TwoTowers:
    model = build_model(
        settings, feature_dim=index.feature_dim, num_words=num_words,
        max_caption_words=index.metadata["max_caption_words"],
    )  # fmt: skip
    own = model.state_dict().keys()
    model.load_state_dict({name: value for name, value in state.items() if name in own})
    return model


def first_not_finite(model: TwoTowers, batch: Batch) -> str | None:
    """The first tensor of a step that is not finite, in the order of computing; None: all are."""
    inputs = {"the features": batch.features_BTF}
    inputs |= {f"the weight {name}": value for name, value in model.state_dict().items()}
    found = [name for name, value in inputs.items() if not torch.isfinite(value).all()]
    return found[0] if found else _in_towers(model, batch)


def _in_towers(model: TwoTowers, batch: Batch) -> str | None:
    found: list[str] = []
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda _module, _inputs, output, name=name: _note(found, output, name)
            )
    dtype = AUTOCAST.get(model.settings.precision)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=False):
        clips_BD, captions_ND, temperature = model(*tower_input(batch, None, torch.device("cpu")))
    for name, value in (("clip embeddings", clips_BD), ("caption embeddings", captions_ND)):
        _note(found, value, name)
    if found:
        return found[0]
    return _in_loss(model, batch, clips_BD, captions_ND, temperature)


def _in_loss(model: TwoTowers, batch: Batch, clips_BD, captions_ND, temperature) -> str | None:
    settings = model.settings
    counts_W3 = np.array([[len(batch.clip_ids_B), len(batch.caption_ids_N), batch.num_valid]])
    loss = mil_nce_loss(
        clips_BD, captions_ND, batch.bag_idx_BA, temperature=temperature,
        excluded_E2=global_exclusion(settings, batch, counts_W3, World.alone()),
        symmetric=settings.symmetric, positive_weight=settings.positive_weight,
    )  # fmt: skip
    if not torch.isfinite(loss):
        return "the loss"
    loss.backward()
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name}"
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    return None if torch.isfinite(norm) else "the norm of all gradients"


def _note(found: list[str], output: torch.Tensor, name: str) -> None:
    if isinstance(output, torch.Tensor) and not torch.isfinite(output).all():
        found.append(f"the output of {name}" if "embeddings" not in name else f"the {name}")


def _bounds(index: BagIndex, batch: Batch) -> str | None:
    """The first bag file of the batch that breaks its bounds."""
    shards = np.unique(index.clip_facts(batch.clip_ids_B.numpy()).shard_B).tolist()
    for shard in shards:
        try:
            check_bags(index.bags[shard], where=str(index.shards[shard].bags))
        except ValueError as error:
            return str(error)
    return None


def _conclusion(found: list[str | None], bounds: str | None) -> str:
    as_it_was, plain, warm = found
    if bounds:
        return f"conclusion: a bag file is damaged; {again('bags')}"
    if as_it_was == "the features":
        return "conclusion: a shard is damaged; set run.train.verify_shards: true to find it"
    if as_it_was and as_it_was.startswith("the weight"):
        return "conclusion: the weights were broken before this step; lower train.lr"
    if as_it_was is None:
        return "conclusion: it does not happen here; a memory bank, other ranks or the GPU matter"
    if plain is None:
        return "conclusion: the precision is too low; set train.precision: fp32"
    if warm is None:
        return "conclusion: similarities are too large; raise train.temperature or normalize"
    return "conclusion: the activations overflow even so; lower train.lr and train.grad_clip"


def main(path: str | Path) -> None:
    """Print the report."""
    sys.stdout.write(replay(path))
