"""The optimizer and its learning rate."""

from __future__ import annotations

import math

import numpy as np
import torch

from trainer.model import TwoTowers
from trainer.settings import TrainSettings

WARMUP_FROM = 0.1


def make_optimizer(model: TwoTowers, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: not on biases, word vectors or the temperature."""
    tables = {id(model.text.words.weight)}
    decayed: list[torch.nn.Parameter] = []
    free: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        matrix = parameter.ndim >= 2 and id(parameter) not in tables
        (decayed if matrix else free).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr)


def make_scaler(settings: TrainSettings, device: torch.device) -> torch.amp.GradScaler:
    """Of the loss in fp16, whose small gradients would vanish; passes all through otherwise."""
    return torch.amp.GradScaler(
        device.type,
        init_scale=settings.fp16_init_scale,
        growth_interval=settings.fp16_growth_interval,
        enabled=settings.precision == "fp16",
    )


def peak_learning_rate(settings: TrainSettings) -> float:
    """`lr`, scaled with the batch if asked: linear (Goyal et al. 2017) or sqrt (for Adam)."""
    ratio = settings.global_batch / settings.lr_base_batch
    return (
        settings.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.lr_scaling]
    )


def learning_rate(settings: TrainSettings, step: int, num_steps: int) -> float:
    """Of the step that follows `step` finished ones: a rise from 0.1 × peak, then a cosine to 0.

    Counted in clips, so that it does not depend on how many fit a step.
    """
    peak = peak_learning_rate(settings)
    done, total = step * settings.global_batch, num_steps * settings.global_batch
    if done < settings.warmup_samples:
        return peak * (WARMUP_FROM + (1 - WARMUP_FROM) * done / settings.warmup_samples)
    fraction = (done - settings.warmup_samples) / max(total - settings.warmup_samples, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0)))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make each random draw of a step a function of (seed, step, rank): nothing to resume."""
    state = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]) >> 1)
