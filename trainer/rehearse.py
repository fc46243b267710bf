"""Try a training on the user's own data before days of it: several ranks, a save, a resume.

Reads   what the training would
Writes  nothing that stays; its run lives in a temporary folder
By hand `python -m trainer.train --rehearse ...` with the arguments of the training itself
"""

from __future__ import annotations

import argparse
import logging
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from pipeline.formats.files import read_json, write_json
from pipeline.formats.settings import read_settings
from trainer.monitor import read_metrics
from trainer.preflight import plan_run
from trainer.run import open_bags
from trainer.settings import TrainSettings

STEPS = 50

logger = logging.getLogger(__name__)


def rehearse(arguments: argparse.Namespace, *, steps: int = STEPS) -> None:
    """Train up to `steps` steps on `num_ranks` ranks, stopped and resumed in the middle.

    Raises:
        ValueError: a part failed, or a loss is not finite.
    """
    with tempfile.TemporaryDirectory(prefix="bagpipe-rehearsal-") as folder:
        root = Path(folder)
        settings = read_json(arguments.settings)
        settings["max_steps"] = min(steps, settings["max_steps"] or steps)
        write_json(root / "train.json", settings)
        wanted = read_settings(TrainSettings, root / "train.json")
        plan = plan_run(open_bags(arguments), wanted, 1)
        ranks = min(num_ranks(arguments, wanted), plan.visits_per_step)
        half = max(1, plan.num_steps // 2)
        _part(arguments, root, ranks, ["--stop-at", str(half)], doing="the first half")
        saved = sorted(path.name for path in root.glob("state-*/step-*.checkpoint"))
        if not saved:
            raise ValueError("the rehearsal saved no checkpoint")
        _part(arguments, root, ranks, [], doing="the resumed half")
        _report(read_metrics(root / "metrics.jsonl"), ranks, saved)


def num_ranks(arguments: argparse.Namespace, settings: TrainSettings) -> int:
    """As many as there are GPUs, two without any, one where the settings ask for one alone."""
    if settings.norm == "batch":
        return 1
    return 2 if arguments.backend == "gloo" else torch.cuda.device_count() or 2


def command_line(
    arguments: argparse.Namespace, root: Path, ranks: int, more: list[str]
) -> list[str]:
    """The launcher's argv of one half."""
    changed = {
        "settings": root / "train.json", "state": root, "output": root / "model.pt",
        "metrics": root / "metrics.jsonl", "log_every": 1, "save_every": 10**9,
    }  # fmt: skip
    values = {**vars(arguments), **changed}
    for name in ("rehearse", "replay", "stop_at"):
        values.pop(name)
    flags = [
        text
        for name, value in values.items()
        for text in (
            f"--{name.replace('_', '-')}", int(value) if isinstance(value, bool) else value
        )
    ]  # fmt: skip
    count = str(ranks)
    launcher = ["-m", "trainer.launch", "--processes", count, "--threads", count, "--"]
    return [sys.executable, *launcher, "-m", "trainer.train", *map(str, flags), *more]


def _part(
    arguments: argparse.Namespace, root: Path, ranks: int, more: list[str], *, doing: str
) -> None:
    logger.info("rehearsing %s, ranks: %d", doing, ranks)
    status = subprocess.run(command_line(arguments, root, ranks, more), check=False).returncode
    if status:
        raise ValueError(
            f"rehearsal: {doing} ended with exit status {status}; its lines above say why"
        )


def _report(metrics: list[dict], ranks: int, saved: list[str]) -> None:
    lines = [entry for entry in metrics if "split" not in entry]
    losses = {entry["step"]: entry["loss"] for entry in lines if "loss" in entry}
    bad = [step for step, loss in losses.items() if loss is None or not math.isfinite(loss)]
    if bad or [entry["step"] for entry in lines] != list(range(1, len(lines) + 1)):
        raise ValueError(f"rehearsal: steps {bad or 'are missing'}: the loss is not finite")
    if not losses:
        raise ValueError("rehearsal: no step had a clip: see above what is left out")
    first, *_, last = [*losses.values()] * 2
    logger.info(
        "the rehearsal passed: %d steps, ranks: %d, saved %s, resumed; loss %.4g to %.4g; %.1f"
        " clips a second; %s",
        len(lines), ranks, ", ".join(saved), first, last, lines[-1]["clips_per_second"],
        lines[-1].get("verdict", ""),
    )  # fmt: skip
