"""One optimizer step: forward, loss, backward, guard, update, memory bank."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import nn

from pipeline.formats.tensors import is_out_of_memory
from trainer.batch import Batch
from trainer.batch_parts import micro_batches, tower_input
from trainer.distributed import without_exchange
from trainer.dump import stop_not_finite
from trainer.gradient_cache import DoesNotFit, GradientCache, Loss
from trainer.guards import Header
from trainer.loss import mil_nce_loss
from trainer.loss_plan import NotFinite
from trainer.model import TwoTowers
from trainer.optimize import learning_rate, seed_step, set_learning_rate
from trainer.preflight import global_exclusion
from trainer.run import Run
from trainer.settings import TrainSettings

SMALLEST_FACTOR = 2.0**-10
"""Of the loss in fp16: 26 steps in a row after the usual 65536."""
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

logger = logging.getLogger(__name__)


def take_step(run: Run, batch: Batch, header: Header) -> tuple[torch.Tensor | None, float]:
    """Forward, backward, guard, update; returns the global loss and the gradient's norm.

    A step without any clip has neither and moves nothing: no exchange, no decay, no momentum. In
    fp16 a step whose gradients overflow is left out, and its norm is not finite.

    Raises:
        ValueError: numbers are not finite, or this rank cannot compute the step. It ends alone; the
            others learn of it at the next exchange.
    """
    settings, world = run.settings, run.world
    if header.empty:
        if world.first:
            logger.warning("step %d has no clip left and is passed over", run.step)
        return None, math.nan
    seed_step(settings.seed, run.step, world.rank)
    set_learning_rate(run.optimizer, learning_rate(settings, run.step, run.num_steps))
    run.optimizer.zero_grad()
    try:
        with world.exchange("computing a step"):
            loss = _gradients(run, batch, header.counts_W3)
    except NotFinite as error:
        stop_not_finite(run, batch, str(error))
    except RuntimeError as error:
        if "returned nan values" not in str(error):  # of run.train.anomaly, on this rank alone
            raise
        stop_not_finite(run, batch, str(error).splitlines()[0], everywhere=False)
    if run.arguments.find_unused_parameters:
        _name_unused(run)
    run.scaler.unscale_(run.optimizer)
    # The step's one wait for a GPU (fp16's scaler adds its own): what follows writes bank, weights
    # and temperature, and must not see numbers that are not finite. An assertion on the device
    # would wait for nothing but end CUDA's context: no dump, no fp16 step that is left out. The
    # host loses the lead of a few launches; the next batch is loaded and copied meanwhile.
    norm = float(nn.utils.clip_grad_norm_(run.model.parameters(), settings.grad_clip))
    if norm < float("inf"):
        _fill_bank(run, batch, header)
    elif fault := _beyond_repair(run, loss, norm):
        stop_not_finite(run, batch, fault)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    if not norm < float("inf") and world.first:
        logger.warning(
            "step %d overflows in fp16 and is left out; the loss's factor falls to %g. Where this"
            " goes on, lower train.fp16_init_scale (gradients that vanish want it higher) or train"
            " in bf16",
            run.step, run.scaler.get_scale(),
        )  # fmt: skip
    run.model.clamp_temperature()
    return loss, norm


def _beyond_repair(run: Run, loss: torch.Tensor, norm: float) -> str:
    """Why a step whose gradient is not finite ends the run; empty where fp16 may leave it out.

    All ranks see the same numbers. A smaller factor of the loss mends gradients and nothing else.
    """
    if run.settings.precision != "fp16":
        return f"the gradient's norm is {norm}"
    if not torch.isfinite(loss):
        return f"the loss is {float(loss)}"
    factor = run.scaler.get_scale()
    if factor < SMALLEST_FACTOR:
        return f"gradients overflow in fp16 though the loss's factor fell to {factor:g}"
    return ""


def _name_unused(run: Run) -> None:
    """Say which parameters got no gradient, when that changes."""
    unused = [n for n, p in run.model.named_parameters() if p.requires_grad and p.grad is None]
    if unused != run.unused and run.world.first:
        logger.info("parameters without a gradient: %s", ", ".join(unused) or "none")
    run.unused = unused


def _gradients(run: Run, batch: Batch, counts_W3: np.ndarray) -> torch.Tensor:
    """The global batch's gradients into the parameters; its loss."""
    count = run.settings.plain_accumulation
    if count == 1:
        return _gradients_of(run, batch, counts_W3, share=1.0)
    loss, seen = torch.zeros((), device=run.world.device), []
    num_valid = max(int(counts_W3[:, 2].sum()), 1)
    for number, part in enumerate(micro_batches(batch, count), start=1):
        own = [len(part.clip_ids_B), len(part.caption_ids_N), part.num_valid]
        part_counts_W3 = run.world.gather_integers(own)
        share = int(part_counts_W3[:, 2].sum()) / num_valid
        last = number == count
        with nullcontext() if last else without_exchange(run.parallel):
            loss += _gradients_of(run, part, part_counts_W3, share=share)
        seen.append(run.seen)
    clips_BD, captions_ND = (torch.cat(side) for side in zip(*filter(None, seen), strict=True))
    run.seen = clips_BD, captions_ND
    return loss


def _gradients_of(run: Run, batch: Batch, counts_W3: np.ndarray, *, share: float) -> torch.Tensor:
    loss_of = run.world.watch.timed("loss", partial(_loss, run, batch, counts_W3, share))
    num_clips, num_captions = len(batch.clip_ids_B), len(batch.caption_ids_N)
    with _fitting(run, num_clips):
        if not run.arguments.chunk:
            return _at_once(run, batch, loss_of)
        with run.world.watch.part("backward"):
            return _cache(run).step(batch, num_clips, num_captions, loss_of, run.scaler.scale)


@contextmanager
def _fitting(run: Run, num_clips: int) -> Iterator[None]:
    """Turn a lack of memory inside, which no smaller chunk mends, into one line."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if not run.arguments.chunk:
            mend = f"set run.train.chunk: {max(1, num_clips // 4)}, which changes no result"
        else:
            mend = (
                "run.train.chunk spares the towers, but the loss sees all clips: use more ranks,"
                " or lower train.global_batch, train.bank_clips or train.bank_captions"
            )
        raise DoesNotFit(
            f"a step of {num_clips} clips on a rank does not fit into memory: {mend}"
        ) from None


def _at_once(run: Run, batch: Batch, loss_of: Loss) -> torch.Tensor:
    """Forward and backward of all of this rank's clips."""
    watch = run.world.watch
    with watch.part("transfer"):
        inputs = tower_input(batch, None, run.world.device)
    with _precision(run):
        clips_BD, captions_ND, temperature = run.parallel(*inputs)
    loss = loss_of(clips_BD, captions_ND, temperature)
    with watch.part("backward"):
        run.scaler.scale(loss).backward()
    return loss.detach()


def _cache(run: Run) -> GradientCache:
    if run.cache is None:
        device = run.world.device
        run.cache = GradientCache(
            run.model,
            run.parallel,
            lambda batch, part: tower_input(batch, part, device),
            chunk=run.arguments.chunk,
            context=partial(_precision, run),
            device=device,
        )
    return run.cache


def _precision(run: Run) -> AbstractContextManager:
    dtype = AUTOCAST.get(run.settings.precision)
    # Without its cache of cast weights: with it, a chunk that is embedded without a graph would
    # leave weights without one to the chunks after it.
    return torch.autocast(
        run.world.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False
    )


def _loss(
    run: Run,
    batch: Batch,
    counts_W3: np.ndarray,
    share: float,
    clips_BD: torch.Tensor,
    captions_ND: torch.Tensor,
    temperature: torch.Tensor | float,
) -> torch.Tensor:
    settings, past = run.settings, None
    run.seen = (clips_BD.detach(), captions_ND.detach())
    if run.bank is not None:
        past = run.bank.past(run.step, batch, *run.seen)
    loss = mil_nce_loss(
        clips_BD,
        captions_ND,
        batch.bag_idx_BA,
        temperature=temperature,
        excluded_E2=global_exclusion(settings, batch, counts_W3, run.world),
        symmetric=settings.symmetric,
        positive_weight=settings.positive_weight,
        past=past,
        world=run.world,
        counts_W3=counts_W3,
        largest=largest_similarity(settings),
    )
    return loss * share if share != 1 else loss


def largest_similarity(settings: TrainSettings) -> float | None:
    """A bound of |similarity| that is known without looking at embeddings, or None."""
    if settings.normalize and not settings.learn_temperature:
        return 1.01 / settings.temperature
    return None


@torch.no_grad()
def _fill_bank(run: Run, batch: Batch, header: Header) -> None:
    """Push the step's embeddings: the towers' own, or those of their slow copies."""
    if run.bank is None:
        return
    assert run.seen is not None  # of this step
    clips_BD, captions_ND = run.seen
    if run.slow is not None:
        with _fitting(run, len(clips_BD)):
            clips_BD, captions_ND = _slow_embeddings(run, run.slow, batch)
        follow(run.slow, run.model, run.settings.bank_momentum)
    run.bank.push(batch, clips_BD, captions_ND, header.counts_W3)


def _slow_embeddings(run: Run, slow: TwoTowers, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch through the slow copies, in chunks where the towers take it in chunks."""
    if run.arguments.chunk:
        return _cache(run).embed(slow, batch, len(batch.clip_ids_B), len(batch.caption_ids_N))
    with _precision(run):
        clips_BD, captions_ND, _ = slow(*tower_input(batch, None, run.world.device))
    return clips_BD, captions_ND


@torch.no_grad()
def follow(slow: TwoTowers, model: TwoTowers, momentum: float) -> None:
    """Move slow copies of the towers towards them: slow = momentum · slow + (1 - momentum) · own.

    He et al. 2020, "Momentum Contrast", Eq. 2.
    """
    for mine, theirs in zip(slow.parameters(), model.parameters(), strict=True):
        mine.lerp_(theirs, 1 - momentum)
    for kept, new in zip(slow.buffers(), model.buffers(), strict=True):
        kept.copy_(new)
