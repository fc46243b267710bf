"""Bag files and feature shards into a rank's batches, in the order that `trainer.order` gives.

Bag files are mapped, not read; of a shard only the rows of the drawn clips are read. A step's batch
is the same whoever loads it: this process or any number of loader processes.

Letters: B clips, T feature rows of a clip, F numbers of a feature row, N distinct captions, L token
ids of a caption, A captions of a bag, G visits of a step, C any clips.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pipeline.formats.bags import TRAIN
from pipeline.formats.shard import read_features
from trainer.bag_index import BagIndex, ClipFacts, ShardFiles, open_index, rebuild_hint
from trainer.model import CaptionWords, caption_words
from trainer.negatives import CaptionKeys, ClipKeys
from trainer.order import Schedule, drawn_clips, epoch_order, rank_slice
from trainer.settings import TrainSettings
from trainer.signals import sparing_children, start_loader

OPEN_SHARDS = 64


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A video whose feature rows cannot be read."""

    video: int
    """Its number over all bag files."""
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A rank's part of a step."""

    step: int
    id_hash: int
    """Of the whole step's videos: equal on all ranks, or a rank is in another step."""
    clip_ids_B: torch.Tensor
    """[B] int64: the clips' numbers over all bag files."""
    caption_ids_N: torch.Tensor
    """[N] int64: the captions' numbers over all bag files, in order of first appearance."""
    features_BTF: torch.Tensor
    """[B, T, F] float16, zeros after each clip's own rows."""
    mask_BT: torch.Tensor
    """[B, T] bool: a clip's own rows."""
    words: CaptionWords
    bag_idx_BA: torch.Tensor
    """[B, A] int64: places in the batch's captions, -1 = padding. Stays on the CPU."""
    clip_keys_B3: torch.Tensor
    """[B, 3] int64: video, start and stop (the bits of float64). Stays on the CPU."""
    caption_keys_N4: torch.Tensor
    """[N, 4] int64: video, start and stop (the bits of float64), text hash. Stays on the CPU."""
    unreadable: tuple[Unreadable, ...] = ()
    """Videos of the step whose clips are left out: no row, no negative."""

    @property
    def num_valid(self) -> int:
        """Clips whose bag is not empty."""
        return int((self.bag_idx_BA >= 0).any(dim=1).sum())

    def to(self, device: torch.device) -> Batch:
        """The same batch with what the towers need on `device`."""
        move = {"device": device, "non_blocking": True}
        return replace(
            self,
            features_BTF=self.features_BTF.to(**move),
            mask_BT=self.mask_BT.to(**move),
            words=CaptionWords(*(part.to(**move) for part in self.words)),
        )

    def pin_memory(self) -> Batch:
        """The same batch in memory from which a GPU copies without waiting."""
        pinned = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor):
                pinned[field.name] = value.pin_memory()
        words = CaptionWords(*(part.pin_memory() for part in self.words))
        return replace(self, **pinned, words=words)


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong while loading a step; an exception would lose its line between processes."""

    message: str


class FeatureReader:
    """Reads feature rows from shards, of which it keeps the last few open."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, object] = OrderedDict()

    def read(self, tar: Path, offset: int, dim: int, start: int, count: int) -> np.ndarray:
        """Rows [start, start + count) of a video: [count, F] float16; raises `ValueError`."""
        if tar not in self._files:
            if len(self._files) >= OPEN_SHARDS:
                self._files.popitem(last=False)[1].close()
            self._files[tar] = open(tar, "rb", buffering=0)  # noqa: SIM115 - closed when evicted
        self._files.move_to_end(tar)
        try:
            return read_features(self._files[tar].fileno(), offset, dim, start, count)
        except ValueError as error:
            raise ValueError(f"{tar}: {error}; {rebuild_hint(tar)}") from None


class StepData(Dataset):
    """Step number to a rank's batch, or to a `Fault`. Opens its files where it is used first."""

    def __init__(
        self,
        shards: list[ShardFiles],
        settings: TrainSettings,
        schedule: Schedule,
        *,
        rank: int,
        size: int,
        index: BagIndex | None = None,
    ) -> None:
        """`index`: the open bag files, where they are open already."""
        self.shards, self.settings, self.schedule = shards, settings, schedule
        self.rank, self.size = rank, size
        self.bad = index.bad if index else frozenset()
        """Shards that are left out, by number."""
        self._index = index

    def __getstate__(self) -> dict:
        """Without the open files: a pickled map would be a copy."""
        return {**self.__dict__, "_index": None}

    @property
    def index(self) -> BagIndex:
        """The open bag files."""
        if self._index is None:
            self._index = open_index(self.shards, self.bad)
        return self._index

    def visits(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch of a step and its videos over all ranks: [G] int64."""
        epoch, number = self.schedule.epoch_of(step)
        start = number * self.schedule.visits_per_step
        order = _cached_order(self.index, self.settings.seed, epoch, self.settings.shuffle_shards)
        return epoch, order[start : start + self.schedule.visits_per_step]

    def epoch_videos(self, epoch: int) -> np.ndarray:
        """The videos that an epoch visits, in its order: [V] int64."""
        order = _cached_order(self.index, self.settings.seed, epoch, self.settings.shuffle_shards)
        return order[: self.schedule.steps_per_epoch * self.schedule.visits_per_step]

    def clips(self, epoch: int, videos: np.ndarray) -> np.ndarray:
        """The clips that visits of these videos draw in this epoch, of good shards: [C] int64."""
        drawn = [np.zeros(0, np.int64)]
        for video in videos[self.index.good(videos)].tolist():
            first, count = self.index.clips_of(video)
            wanted = self.settings.clips_per_video
            drawn.append(first + drawn_clips(self.settings.seed, epoch, video, count, wanted))
        return np.concatenate(drawn)

    def __getitem__(self, step: int) -> Batch | Fault:
        try:
            epoch, videos = self.visits(step)
            own = videos[rank_slice(len(videos), self.rank, self.size)]
            batch = collate(self.index, self.clips(epoch, own), step, id_hash(step, videos))
            check_owners(batch, videos, own)
            return batch
        except (ValueError, OSError) as error:
            return Fault(str(error))


def check_owners(batch: Batch, videos: np.ndarray, own: np.ndarray) -> None:
    """A step holds a video and a clip once, and a rank's captions are those of its own videos.

    Raises:
        ValueError: one of them does not hold, so a caption could have two owners.
    """
    clips_B = batch.clip_ids_B.numpy()
    if len(np.unique(videos)) != len(videos) or len(np.unique(clips_B)) != len(clips_B):
        raise ValueError(f"step {batch.step} holds a video or a clip twice")
    foreign_N = ~np.isin(batch.caption_keys_N4[:, 0].numpy(), own)
    if foreign_N.any():
        caption = int(batch.caption_ids_N[int(np.argmax(foreign_N))])
        raise ValueError(
            f"step {batch.step}: a bag holds caption {caption} of another video:"
            " run snakemake --cores N --forcerun bags"
        )


@lru_cache(maxsize=1)
def _cached_order(index: BagIndex, seed: int, epoch: int, shuffle_shards: int) -> np.ndarray:
    return epoch_order(seed, epoch, index.videos(TRAIN), shuffle_shards)


def id_hash(step: int, videos: np.ndarray) -> int:
    """A number of 63 bits that names a step and its videos."""
    digest = hashlib.blake2b(np.int64(step).tobytes() + videos.astype("<i8").tobytes())
    return int.from_bytes(digest.digest()[:8], "little") >> 1


def load_steps(
    data: StepData, first: int, *, workers: int, timeout_seconds: float, pin: bool
) -> Iterator[Batch | Fault]:
    """The batches of steps [first, the run's last], loaded here or by spawned processes."""
    steps = range(first, data.schedule.num_steps)
    if not workers:
        yield from (data[step] for step in steps)
        return
    loader = DataLoader(
        data, batch_size=None, sampler=steps, num_workers=workers, collate_fn=_as_it_is,
        multiprocessing_context="spawn", timeout=timeout_seconds, pin_memory=pin,
        worker_init_fn=start_loader,
    )  # fmt: skip
    with sparing_children():
        batches = iter(loader)
    while True:
        try:
            batch = next(batches, None)
        except (RuntimeError, OSError) as error:
            line = str(error).splitlines()[0]
            yield Fault(f"loading failed: a loader process died or is too slow ({line})")
            return
        if batch is None:
            return
        yield batch


def _as_it_is(batch: Batch | Fault) -> Batch | Fault:
    return batch


def collate(
    index: BagIndex,
    clips_B: np.ndarray,
    step: int,
    id_hash: int,
    *,
    features: bool = True,
) -> Batch:
    """Gather clips, the captions of their bags, each once, and the clips' feature rows.

    The clips of a video of which a row cannot be read are left out, and the video is named.
    """
    facts = index.clip_facts(clips_B)
    features_BTF, mask_BT = _no_features(len(clips_B), index.feature_dim)
    unreadable: tuple[Unreadable, ...] = ()
    if features:
        features_BTF, mask_BT, unreadable = _features(index, facts)
    if unreadable:
        readable_B = ~np.isin(facts.video_B, [fault.video for fault in unreadable])
        clips_B, facts = clips_B[readable_B], index.clip_facts(clips_B[readable_B])
        features_BTF, mask_BT = features_BTF[readable_B], mask_BT[readable_B]
    caption_ids_N, bag_idx_BA = first_appearance(facts.captions_BA)
    captions = index.caption_facts(caption_ids_N)
    return Batch(
        step=step,
        id_hash=id_hash,
        clip_ids_B=torch.from_numpy(clips_B.astype(np.int64)),
        caption_ids_N=torch.from_numpy(caption_ids_N),
        features_BTF=torch.from_numpy(features_BTF),
        mask_BT=torch.from_numpy(mask_BT),
        words=caption_words(captions.ids_NL),
        bag_idx_BA=torch.from_numpy(bag_idx_BA),
        clip_keys_B3=torch.from_numpy(_packed(facts.video_B, facts.start_B, facts.stop_B)),
        caption_keys_N4=torch.from_numpy(
            _packed(captions.video_N, captions.start_N, captions.stop_N, captions.hash_N)
        ),
        unreadable=unreadable,
    )


def first_appearance(bags_BA: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct captions in order of first appearance [N], and the bags as places among them."""
    filled_BA = bags_BA >= 0
    sorted_N, first_N, place_P = np.unique(
        bags_BA[filled_BA], return_index=True, return_inverse=True
    )
    order_N = np.argsort(first_N, kind="stable")
    place_of_N = np.empty(len(order_N), np.int64)
    place_of_N[order_N] = np.arange(len(order_N))
    bag_idx_BA = np.full(bags_BA.shape, -1, np.int64)
    bag_idx_BA[filled_BA] = place_of_N[place_P]
    return sorted_N[order_N].astype(np.int64), bag_idx_BA


def unpack_clips(keys_B3: np.ndarray, bag_idx_BA: np.ndarray) -> ClipKeys:
    """The inverse of a batch's `clip_keys_B3`."""
    start_B, stop_B = keys_B3[:, 1].copy().view("f8"), keys_B3[:, 2].copy().view("f8")
    return ClipKeys(video_B=keys_B3[:, 0], start_B=start_B, stop_B=stop_B, bag_idx_BA=bag_idx_BA)


def unpack_captions(keys_N4: np.ndarray) -> CaptionKeys:
    """The inverse of a batch's `caption_keys_N4`."""
    start_N, stop_N = keys_N4[:, 1].copy().view("f8"), keys_N4[:, 2].copy().view("f8")
    return CaptionKeys(video_N=keys_N4[:, 0], start_N=start_N, stop_N=stop_N, hash_N=keys_N4[:, 3])


def _packed(video_X: np.ndarray, start_X: np.ndarray, stop_X: np.ndarray, *more) -> np.ndarray:
    """Columns side by side as int64, so that one exchange carries them all."""
    return np.stack([video_X, start_X.view("i8"), stop_X.view("i8"), *more], axis=1)


def _no_features(num_clips: int, feature_dim: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((num_clips, 1, feature_dim), np.float16), np.zeros((num_clips, 1), bool)


_reader = lru_cache(maxsize=1)(FeatureReader)


def _features(
    index: BagIndex, facts: ClipFacts
) -> tuple[np.ndarray, np.ndarray, tuple[Unreadable, ...]]:
    longest = int(facts.feature_count_B.max(initial=1))
    mask_BT = np.arange(longest) < facts.feature_count_B[:, None]
    features_BTF = np.zeros((*mask_BT.shape, index.feature_dim), np.float16)
    reader, faults = _reader(), {}
    for clip, (shard, offset, start, count) in enumerate(facts.places()):
        tar, video = index.shards[shard].tar, int(facts.video_B[clip])
        try:
            rows_TF = reader.read(tar, offset, index.feature_dim, start, count)
        except (ValueError, OSError) as error:  # the one place where a bad video becomes a row
            faults.setdefault(video, str(error))
        else:
            features_BTF[clip, :count] = rows_TF
    # float16 has 5 bits of exponent: damaged bytes are soon infinite or no number.
    for clip in np.flatnonzero(~np.isfinite(features_BTF).all(axis=(1, 2))).tolist():
        tar = index.shards[facts.shard_B[clip]].tar
        fault = f"{tar}: features that are not finite; {rebuild_hint(tar)}"
        faults.setdefault(int(facts.video_B[clip]), fault)
    return features_BTF, mask_BT, tuple(Unreadable(*item) for item in faults.items())
