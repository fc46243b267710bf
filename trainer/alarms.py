"""Warns while there is time: large gradients, embeddings that all look alike, a loss at chance.

Letters: B clips, N captions, D numbers of an embedding.
"""

from __future__ import annotations

import logging

import torch

from trainer.distributed import World
from trainer.settings import TrainSettings

LARGE_NORM = 20.0
"""A gradient norm, before it is cut to grad_clip, of a run that is about to diverge."""
SMALL_STD = 0.05
"""Spread of embeddings on the unit sphere: 1 for random ones, 0 when all are the same."""
CHANCE = 0.98
"""Of the chance level; a loss above it has learned nothing."""
PATIENCE = 200
"""Steps after the warm-up before a loss at chance is a fault."""

logger = logging.getLogger(__name__)


class Alarms:
    """Watches what the log lines hold anyway; each kind of alarm speaks once until it is over."""

    def __init__(self, settings: TrainSettings, chance: float, *, speaks: bool) -> None:
        """`chance`: a blind model's loss on a batch; 0: not known."""
        self._settings, self._speaks = settings, speaks
        # A bank's negatives come on top of those that the level was counted with.
        self._chance = 0.0 if settings.bank_clips or settings.bank_captions else chance
        self._quiet_steps = PATIENCE + settings.warmup_samples // settings.global_batch
        self._largest = 0.0
        self._ringing: set[str] = set()

    def step(self, norm: float) -> None:
        """Note a step's gradient norm, which is on the CPU already."""
        self._largest = max(self._largest, norm)

    def line(self, entry: dict) -> list[str]:
        """The alarms that a log line raises, new ones logged as warnings."""
        largest, self._largest = self._largest, 0.0
        found = {}
        if LARGE_NORM < largest < float("inf"):
            found["norm"] = (
                f"the gradient norm reached {largest:.3g}, above {LARGE_NORM:g}: lower train.lr,"
                " raise train.temperature or lengthen train.warmup_samples"
            )
        for name in ("clip_std", "caption_std"):
            if entry["step"] > PATIENCE and entry.get(name, 1.0) < SMALL_STD:
                found[name] = (
                    f"{name} is {entry[name]:.3g}: the embeddings collapse to one point; lower"
                    " train.lr, raise train.global_batch, or look at the features"
                )
        late = self._chance and entry["step"] > self._quiet_steps
        if late and entry["loss"] > CHANCE * self._chance:
            found["chance"] = (
                f"after {entry['step']} steps the loss {entry['loss']:.4g} is still a blind"
                f" model's ({self._chance:.4g}): do captions and clips belong together? Check"
                " the captions' unit and offset, then train.lr"
            )
        if self._speaks:
            for kind in found.keys() - self._ringing:
                logger.warning("step %d: %s", entry["step"], found[kind])
        self._ringing = set(found)
        return sorted(found)


@torch.no_grad()
def spread(world: World, clips_BD: torch.Tensor, captions_ND: torch.Tensor) -> dict[str, float]:
    """`clip_std` and `caption_std`: sqrt(1 - |mean of the unit vectors|²) over all ranks' rows."""
    sums = []
    for rows in (clips_BD, captions_ND):
        unit = torch.nn.functional.normalize(rows.double(), dim=1)
        sums += [unit.sum(dim=0), unit.new_full((1,), len(rows))]
    width = clips_BD.shape[1]
    clips, num_clips, captions, num_captions = world.sum(torch.cat(sums)).split(
        [width, 1, width, 1]
    )
    found = {}
    for name, total, count in (("clip", clips, num_clips), ("caption", captions, num_captions)):
        mean = total / count.clamp(min=1)
        found[f"{name}_std"] = float((1 - mean.square().sum()).clamp(min=0).sqrt())
    return found
