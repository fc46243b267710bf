"""What a run says about itself: metrics.jsonl, TensorBoard, log lines, a progress bar.

metrics.jsonl holds one JSON object a line. Training lines: step, epoch, samples, loss, lr,
gradient_norm, temperature, step_seconds, clips_per_second, clip_std, caption_std, alarms, and from
a start's second step on seconds_{part} (`trainer.stopwatch.PARTS`), clips_per_second_ranks,
peak_memory_gb, gpu_utilization (percent, with the extra `gpu`) and verdict. Validation lines: step,
epoch, samples, split ("val"), clips, texts, val_loss, R@1, R@5, R@10, median_rank, mean_rank.
`step` counts finished steps; loss and times are means over the steps since the line before, without
what was done between them (validation, saving). Steps without a clip have no loss.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm

from pipeline.formats.files import naming, write_text

QUIET = ("clips_per_second_ranks", "verdict", "alarms")
"""Fields that the file holds and the log leaves out; a verdict is said when it changes."""

logger = logging.getLogger(__name__)


class MetricsLog:
    """Appends to metrics.jsonl in the run folder, and to TensorBoard files if installed."""

    def __init__(self, folder: Path, *, resumed_step: int) -> None:
        self.path = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        kept = [e for e in read_metrics(self.path) if e["step"] <= resumed_step]
        write_text(self.path, "".join(_line(entry) for entry in kept))
        self._board = _tensorboard(folder / "tensorboard", resumed_step)

    def write(self, entry: dict) -> None:
        """Append an entry; numbers that are not finite become null."""
        with naming(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(_line(entry))
        if self._board is not None:
            group = entry.get("split", "train")
            with naming(self._board.log_dir):
                for name, value in entry.items():
                    if isinstance(value, int | float) and name != "step":
                        self._board.add_scalar(f"{group}/{name}", value, entry["step"])

    def publish(self, path: str | Path) -> None:
        """Copy all lines to `path`, whole or not at all."""
        write_text(path, self.path.read_text(encoding="utf-8"))

    def close(self) -> None:
        """Close TensorBoard's files."""
        if self._board is not None:
            with naming(self._board.log_dir):
                self._board.close()


def read_metrics(path: str | Path) -> list[dict]:
    """The entries of a metrics.jsonl up to the first broken line; none without a file."""
    path = Path(path)
    entries: list[dict] = []
    if not path.exists():
        return entries
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


@dataclass(slots=True)
class Meter:
    """Sums since the last line; the loss stays a tensor, so that adding it waits for nothing.

    A run that goes on from a checkpoint goes on with the loss of the line that it was in, and times
    its own steps alone.
    """

    loss_sum: torch.Tensor
    steps: int = 0
    """That `loss_sum` holds."""
    timed: int = 0
    """Steps since `since`, and..."""
    clips: int = 0
    """...their clips."""
    since: float = field(default_factory=time.perf_counter)

    def start_clock(self) -> None:
        """Steps begin now: what came before was no step."""
        self.since, self.timed, self.clips = time.perf_counter(), 0, 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside is no part of a step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.since += time.perf_counter() - began

    def add(self, loss: torch.Tensor | None, *, clips: int) -> None:
        """Count a step; one without a clip takes time and has no loss."""
        if loss is not None:
            self.loss_sum += loss.detach()
            self.steps += 1
        self.timed += 1
        self.clips += clips

    def summary(self) -> dict[str, float]:
        """The means since the last line, no loss where no step had one; starts anew."""
        seconds = time.perf_counter() - self.since
        values = {"loss": float(self.loss_sum) / self.steps} if self.steps else {}
        values |= {
            "step_seconds": seconds / max(self.timed, 1),
            "clips_per_second": self.clips / max(seconds, 1e-9),
        }
        self.loss_sum = torch.zeros_like(self.loss_sum)
        self.steps = 0
        self.start_clock()
        return values

    def state(self) -> dict:
        """For a checkpoint; times are not kept."""
        return {"loss_sum": self.loss_sum.cpu(), "steps": self.steps}

    def restore(self, state: dict) -> None:
        """From `state`'s values."""
        self.loss_sum, self.steps = state["loss_sum"].to(self.loss_sum.device), state["steps"]


class Progress:
    """A bar with the remaining time where stderr is a terminal, else log lines."""

    def __init__(self, first: int, total: int, *, speaks: bool) -> None:
        self._total, self._started, self._first = total, time.perf_counter(), first
        shown = speaks and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=first, unit="step", disable=not shown)
        self._speaks, self._said = speaks, ""

    def step(self) -> None:
        """Count one step."""
        self._bar.update(1)

    def say(self, entry: dict) -> None:
        """Show a line of metrics."""
        text = " ".join(
            f"{name} {_short(value)}"
            for name, value in entry.items()
            if name not in QUIET and not name.startswith("seconds_")
        )
        if (said := entry.get("verdict", "").split(":")[0]) and said != self._said:
            self._said, text = said, f"{text}; {entry['verdict']}"
        if not self._bar.disable:
            self._bar.write(text, file=sys.stderr)
        elif self._speaks:
            done = entry["step"] - self._first
            left = (time.perf_counter() - self._started) / max(done, 1)
            seconds = left * (self._total - entry["step"])
            logger.info("%s (of %d, %s left)", text, self._total, _duration(seconds))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _line(entry: dict) -> str:
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in entry.items()
    }
    return json.dumps(finite, sort_keys=True) + "\n"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def _tensorboard(folder: Path, resumed_step: int):
    """A writer of TensorBoard files, or None where the extra `tensorboard` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder, purge_step=resumed_step + 1)
