"""What is known of a run before its first step, and what follows from a batch before its loss."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.bags import TRAIN, VAL
from pipeline.formats.files import sha256_of_file
from pipeline.formats.names import again
from pipeline.formats.vocabulary import read_vocabulary
from trainer.bag_index import BagIndex
from trainer.batch import Batch, collate, unpack_captions, unpack_clips
from trainer.batch_parts import micro_batches
from trainer.data import StepData, id_hash
from trainer.distributed import World
from trainer.loss import tile_of
from trainer.negatives import chance_level, count_negatives, excluded_pairs
from trainer.optimize import peak_learning_rate
from trainer.order import Schedule, schedule
from trainer.settings import TrainSettings

LOW_TEMPERATURE = 0.03
USUAL_BAGS = (4, 16)
"""Captions a bag, for narrated videos."""
MANY_UNKNOWN = 0.2
"""A share of words without a token id that is worth a word."""

logger = logging.getLogger(__name__)


def read_words(path: str | Path, index: BagIndex) -> list[str]:
    """The vocabulary's words in id order; another vocabulary than the bags' raises `ValueError`."""
    words = list(read_vocabulary(path))
    if sha256_of_file(path) != index.metadata["vocabulary_sha256"]:
        raise ValueError(f"{path} is not the vocabulary of {index.shards[0].bags}: {again('bags')}")
    return words


def plan_run(index: BagIndex, settings: TrainSettings, num_ranks: int) -> Schedule:
    """How many steps there are; raises `ValueError` where there is nothing to train on."""
    num_videos = sum(len(videos) for videos in index.videos(TRAIN))
    if not num_videos:
        raise ValueError(
            f"no video of the train split has a clip in {len(index.shards)} bag files"
            f" ({index.shards[0].bags} ...): results/rejected.csv and logs/bags/ say why"
        )
    plan = schedule(num_videos, settings.visits_per_step, settings.epochs, settings.max_steps)
    if settings.norm == "batch" and plan.visits_per_step < 2:
        raise ValueError(
            "norm batch needs the clips of two videos in a step, and global_batch"
            f" {settings.global_batch} / clips_per_video {settings.clips_per_video} of"
            f" {num_videos} training videos leave one: raise global_batch, or set norm: layer"
        )
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
    own = torch.cat([batch.clip_keys_B3, bag_idx_BA], dim=1)
    clips = world.gather_rows(own, counts_W3[:, 0].tolist()).numpy()
    captions = world.gather_rows(batch.caption_keys_N4, counts_W3[:, 1].tolist()).numpy()
    return excluded_pairs(
        unpack_clips(clips[:, :3], clips[:, 3:]),
        unpack_captions(captions),
        policy=settings.exclusion,
        margin_seconds=settings.margin_seconds,
        exclude_same_text=settings.exclude_same_text,
    )


def check_device(
    settings: TrainSettings, device: torch.device, *, chunk: int, num_ranks: int = 1
) -> None:
    """Refuse settings that this device or these flags cannot serve; `ValueError` says what can."""
    if settings.norm == "batch" and num_ranks > 1:
        raise ValueError(
            f"norm batch would give each of {num_ranks} ranks means of its own, so their number"
            " would decide the result: set train.norm: layer, or sync_batch on GPUs"
        )
    if settings.norm == "sync_batch" and device.type != "cuda":
        raise ValueError(
            "norm sync_batch needs GPUs, torch has none for the CPU: set train.norm: layer"
        )
    if settings.comm_hook == "bf16_compress" and device.type != "cuda":
        raise ValueError(
            "comm_hook bf16_compress needs NCCL on GPUs: set train.comm_hook: fp16_compress"
        )
    if chunk and settings.norm in ("batch", "sync_batch"):
        raise ValueError(
            f"norm {settings.norm} would see the chunks of run.train.chunk one by one, so they"
            " would decide the result: set run.train.chunk: 0, or train.norm: layer"
        )
    if settings.plain_accumulation > 1 and (chunk or settings.bank_clips or settings.bank_captions):
        raise ValueError(
            "plain_accumulation is for comparison alone: without run.train.chunk, bank_clips and"
            " bank_captions"
        )
    if settings.precision == "bf16" and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise ValueError(
                f"precision bf16 is slow on this card ({torch.cuda.get_device_name(device)},"
                f" capability {major}.{minor}; 8.0 is needed): set train.precision: fp16"
            )


def describe_run(data: StepData, num_ranks: int, device: torch.device) -> float:
    """Say how much there is, how it is cut into steps, and what the first step looks like.

    Returns the loss of a blind model on the first step.
    """
    index, settings, plan = data.index, data.settings, data.schedule
    counts = {split: _count(index, split) for split in (TRAIN, VAL)}
    logger.info(
        "%d clips of %d videos to train on, %d clips of %d videos to validate, in %d shards",
        *counts[TRAIN], *counts[VAL], len(index.shards),
    )  # fmt: skip
    warn_of_data(index, num_val=counts[VAL][1])
    used = data.epoch_videos(0)
    samples = int(np.minimum(index.clip_counts()[used], settings.clips_per_video).sum())
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
    if plan.visits_per_step < settings.visits_per_step:
        logger.warning(
            "global_batch %d needs %d videos of %d clips, and there are %d: steps are smaller",
            settings.global_batch, settings.visits_per_step, settings.clips_per_video,
            plan.num_videos,
        )  # fmt: skip
    if settings.plain_accumulation > 1:
        logger.warning(
            "plain_accumulation cuts each step into %d parts: a clip has the negatives of its own"
            " part alone, about 1/%d of the step's. run.train.chunk saves as much memory and gives"
            " up none",
            settings.plain_accumulation, settings.plain_accumulation,
        )  # fmt: skip
    chance = _describe_first_step(data, num_ranks, device)
    if settings.warmup_samples >= plan.num_steps * settings.global_batch:
        logger.warning(
            "warmup_samples %d covers the whole run of %d clips: lr never reaches %g",
            settings.warmup_samples, plan.num_steps * settings.global_batch,
            peak_learning_rate(settings),
        )  # fmt: skip
    if settings.temperature < LOW_TEMPERATURE:
        logger.warning(
            "temperature %g is below %g: gradients may explode (lower is sharper)",
            settings.temperature, LOW_TEMPERATURE,
        )  # fmt: skip
    return chance


def warn_of_data(index: BagIndex, *, num_val: int) -> None:
    """Say now what would show hours later, or never."""
    if not num_val:
        logger.warning(
            "no video is left to validate on, so a test without a list of clips"
            " (evaluate.protocols) will fail after training: give some videos the split `val`, or"
            " raise bags.val_fraction"
        )
    if not USUAL_BAGS[0] <= index.bag_size <= USUAL_BAGS[1]:
        logger.info(
            "bags.bag_size is %d: what is said in narrated videos, as in HowTo100M's, is seen some"
            " seconds before or after, so that %d to %d captions a bag are usual",
            index.bag_size, *USUAL_BAGS,
        )  # fmt: skip
    counts = Counter[str]()
    for bags in index.bags:
        counts.update(bags.metadata.get("counts", {}))
    unknown, words = counts["words_not_in_vocabulary"], counts["words_of_captions"]
    if unknown > MANY_UNKNOWN * words:
        logger.warning(
            "%.0f %% of the captions' words are not in the vocabulary, which was counted over other"
            " captions or cut short: snakemake -R vocabulary counts again; vocabulary.max_words and"
            " min_count say how many are kept",
            100 * unknown / words,
        )  # fmt: skip


def _describe_first_step(data: StepData, num_ranks: int, device: torch.device) -> float:
    """Negatives and chance level of the first global batch, from its bags alone."""
    settings = data.settings
    epoch, videos = data.visits(0)
    clips_B = data.clips(epoch, videos)
    batch = collate(data.index, clips_B, 0, id_hash(0, videos), features=False)
    # Of as many parts as the ranks cut theirs into, which are no negatives of each other.
    parts = micro_batches(batch, settings.plain_accumulation)
    found = (_negatives(settings, part) for part in parts)
    sizes, negatives, excluded, pairs = zip(*found, strict=True)
    sizes_B, negatives_B = np.concatenate(sizes), np.concatenate(negatives)
    chance = chance_level(sizes_B, negatives_B, settings.positive_weight)
    logger.info(
        "first step: %d clips, %d captions, %.1f captions a bag, %.1f negatives a clip, %.2f %% of"
        " pairs excluded; a blind model's loss is %.4f",
        len(clips_B), len(batch.caption_ids_N), _mean(sizes_B), _mean(negatives_B),
        100 * sum(excluded) / max(sum(pairs), 1), chance,
    )  # fmt: skip
    need = estimate_memory(
        settings, batch, num_ranks, feature_dim=data.index.feature_dim,
        num_words=data.index.metadata["vocabulary_size"], tile=tile_of(device),
    )  # fmt: skip
    logger.info(
        "a rank needs about %.3g GB for the loss, %.3g GB for the text tower and %.3g GB for"
        " weights and optimizer; each step it sends %.3g MB of gradients and gathers %.3g MB of"
        " embeddings",
        *(need[name] / 1e9 for name in ("loss", "text", "weights")),
        *(need[name] / 1e6 for name in ("gradients", "embeddings")),
    )  # fmt: skip
    return chance


def _negatives(settings: TrainSettings, batch: Batch) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Captions and negatives of each bag [B], excluded pairs, and all pairs."""
    bag_idx_BA, num_captions = batch.bag_idx_BA.numpy(), len(batch.caption_ids_N)
    counts_W3 = np.array([[len(bag_idx_BA), num_captions, batch.num_valid]])
    excluded_E2 = global_exclusion(settings, batch, counts_W3, World.alone())
    negatives_B = count_negatives(
        bag_idx_BA, excluded_E2, num_captions, symmetric=settings.symmetric
    )
    sizes_B = (bag_idx_BA >= 0).sum(axis=1)
    return sizes_B, negatives_B, len(excluded_E2), len(bag_idx_BA) * num_captions


def estimate_memory(
    settings: TrainSettings,
    batch: Batch,
    num_ranks: int,
    *,
    feature_dim: int,
    num_words: int,
    tile: int,
) -> dict[str, float]:
    """Bytes of a rank in a step that is like this global batch; rough, rather too many.

    loss: all embeddings and their own gradients, two tiles; text: words, fc1 of distinct words and
    the hidden rows of captions, each with its gradient; weights: four times, with AdamW's moments.
    `gradients` and `embeddings` are what travels between ranks.
    """
    clips, captions = len(batch.clip_ids_B), len(batch.caption_ids_N)
    dim, hidden, word_dim = settings.embedding_dim, settings.text_hidden, settings.word_dim
    rows = clips + captions + settings.bank_clips + settings.bank_captions
    low = 2 if settings.comm_hook != "none" else 4
    video = feature_dim * dim if settings.video_head == "projection" else 0
    trained = (num_words + 1) * word_dim * (not settings.freeze_words) + word_dim * hidden
    trained += hidden * dim + video
    return {
        "loss": 4 * (rows * dim * (1 + 2 / num_ranks) + 2 * min(tile, clips * captions)),
        "text": 8 * (len(batch.words.words_U) * (word_dim + 2 * hidden)
                     + 2 * captions * hidden) / num_ranks,
        "weights": 16 * trained,
        "gradients": low * trained if num_ranks > 1 else 0,
        "embeddings": 4 * (clips + captions) * dim if num_ranks > 1 else 0,
    }  # fmt: skip


def _count(index: BagIndex, split: int) -> tuple[int, int]:
    """Clips and videos of a split."""
    return int(index.clips_of_shards(split).sum()), sum(map(len, index.videos(split)))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
