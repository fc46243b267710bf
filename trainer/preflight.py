"""What is known of a run before its first step, and what follows from a batch before its loss."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.bags import TRAIN, VAL
from pipeline.formats.files import sha256_of_file
from pipeline.formats.vocabulary import read_vocabulary
from trainer.bag_index import BagIndex
from trainer.data import Batch, StepData, collate, id_hash, unpack_captions, unpack_clips
from trainer.distributed import World
from trainer.negatives import chance_level, count_negatives, excluded_pairs
from trainer.order import Schedule, schedule
from trainer.settings import TrainSettings

LOW_TEMPERATURE = 0.03

logger = logging.getLogger(__name__)


def read_words(path: str | Path, index: BagIndex) -> list[str]:
    """The vocabulary's words in id order; another vocabulary than the bags' raises `ValueError`."""
    words = list(read_vocabulary(path))
    if sha256_of_file(path) != index.metadata["vocabulary_sha256"]:
        raise ValueError(
            f"{path} is not the vocabulary of {index.shards[0].bags}:"
            " run snakemake --cores N --forcerun bags"
        )
    return words


def plan_run(index: BagIndex, settings: TrainSettings, num_ranks: int) -> Schedule:
    """How many steps there are; raises `ValueError` where there is nothing to train on."""
    num_videos = sum(len(videos) for videos in index.videos(TRAIN))
    if not num_videos:
        raise ValueError(
            f"no video of the train split has a clip in {len(index.shards)} bag files"
            f" ({index.shards[0].bags} ...): see results/rejected.csv and the counts in the report"
        )
    plan = schedule(num_videos, settings.visits_per_step, settings.epochs, settings.max_steps)
    if plan.visits_per_step < num_ranks:
        raise ValueError(
            f"{num_ranks} ranks share {plan.visits_per_step} videos of a step (global_batch"
            f" {settings.global_batch} / clips_per_video {settings.clips_per_video}, of"
            f" {num_videos} training videos): use fewer ranks, a larger global_batch or more videos"
        )
    return plan


def global_exclusion(
    settings: TrainSettings, batch: Batch, counts_W3: np.ndarray, world: World
) -> np.ndarray:
    """The global batch's excluded pairs, the same on all ranks: [E, 2] (`excluded_pairs`)."""
    if settings.exclusion == "none" and not settings.exclude_same_text:
        return np.zeros((0, 2), np.int64)
    first_caption = int(counts_W3[: world.rank, 1].sum())
    bag_idx_BA = batch.bag_idx_BA + first_caption * (batch.bag_idx_BA >= 0)
    clips = torch.cat([batch.clip_keys_B3, bag_idx_BA], dim=1)
    clips = world.gather_rows(clips, counts_W3[:, 0].tolist()).numpy()
    captions = world.gather_rows(batch.caption_keys_N4, counts_W3[:, 1].tolist()).numpy()
    return excluded_pairs(
        unpack_clips(clips[:, :3], clips[:, 3:]),
        unpack_captions(captions),
        policy=settings.exclusion,
        margin_seconds=settings.margin_seconds,
        exclude_same_text=settings.exclude_same_text,
    )


def describe_run(data: StepData, num_ranks: int) -> None:
    """Say how much there is, how it is cut into steps, and what the first step looks like."""
    index, settings, plan = data.index, data.settings, data.schedule
    counts = {split: _count(index, split) for split in (TRAIN, VAL)}
    logger.info(
        "%d clips of %d videos to train on, %d clips of %d videos to validate, in %d shards",
        *counts[TRAIN], *counts[VAL], len(index.shards),
    )  # fmt: skip
    used = np.concatenate([data.visits(step)[1] for step in range(plan.steps_per_epoch)])
    samples = sum(min(index.clips_of(v)[1], settings.clips_per_video) for v in used.tolist())
    logger.info(
        "%d steps, %d an epoch; an epoch uses %d videos (%d clips, up to %d a visit) and drops %d",
        plan.num_steps, plan.steps_per_epoch, len(used), samples, settings.clips_per_video,
        plan.dropped_per_epoch,
    )  # fmt: skip
    logger.info(
        "a step visits %d videos, up to %d clips, %d on each of %d ranks",
        plan.visits_per_step, plan.visits_per_step * settings.clips_per_video,
        plan.visits_per_step * settings.clips_per_video // num_ranks, num_ranks,
    )  # fmt: skip
    _describe_first_step(data)
    if settings.warmup_samples >= plan.num_steps * settings.global_batch:
        logger.warning(
            "warmup_samples %d covers the whole run of %d clips: lr never reaches %g",
            settings.warmup_samples, plan.num_steps * settings.global_batch, settings.lr,
        )  # fmt: skip
    if settings.temperature < LOW_TEMPERATURE:
        logger.warning(
            "temperature %g is below %g: gradients may explode (lower is sharper)",
            settings.temperature, LOW_TEMPERATURE,
        )  # fmt: skip


def _describe_first_step(data: StepData) -> None:
    """Negatives and chance level of the first global batch, from its bags alone."""
    settings = data.settings
    epoch, videos = data.visits(0)
    clips_B = data.clips(epoch, videos)
    batch = collate(data.index, clips_B, 0, id_hash(0, videos), features=False)
    bag_idx_BA, num_captions = batch.bag_idx_BA.numpy(), len(batch.caption_ids_N)
    counts_W3 = np.array([[len(clips_B), num_captions, batch.num_valid]])
    excluded_E2 = global_exclusion(settings, batch, counts_W3, World.alone())
    negatives_B = count_negatives(
        bag_idx_BA, excluded_E2, num_captions, symmetric=settings.symmetric
    )
    sizes_B = (bag_idx_BA >= 0).sum(axis=1)
    logger.info(
        "first step: %d clips, %d captions, %.1f captions a bag, %.1f negatives a clip, %.2f %% of"
        " pairs excluded; a blind model's loss is %.4f",
        len(clips_B), num_captions, sizes_B.mean(), negatives_B.mean(),
        100 * len(excluded_E2) / max(len(clips_B) * num_captions, 1),
        chance_level(sizes_B, negatives_B, settings.positive_weight),
    )  # fmt: skip


def _count(index: BagIndex, split: int) -> tuple[int, int]:
    """Clips and videos of a split."""
    videos = np.concatenate(index.videos(split))
    return sum(index.clips_of(video)[1] for video in videos.tolist()), len(videos)
