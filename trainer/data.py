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

from pipeline.formats.bags import TRAIN, VAL
from pipeline.formats.shard import read_features
from trainer.bag_index import BagIndex, ShardFiles, open_index, rebuild_hint
from trainer.model import CaptionWords, caption_words
from trainer.negatives import CaptionKeys, ClipKeys
from trainer.order import Schedule, drawn_clips, epoch_order, rank_slice
from trainer.settings import TrainSettings

OPEN_SHARDS = 64


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
    ) -> None:
        self.shards, self.settings, self.schedule = shards, settings, schedule
        self.rank, self.size = rank, size
        self._index: BagIndex | None = None

    def __getstate__(self) -> dict:
        """Without the open files: a pickled map would be a copy."""
        return {**self.__dict__, "_index": None}

    @property
    def index(self) -> BagIndex:
        """The open bag files."""
        if self._index is None:
            self._index = open_index(self.shards)
        return self._index

    def visits(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch of a step and its videos over all ranks: [G] int64."""
        epoch, number = self.schedule.epoch_of(step)
        start = number * self.schedule.visits_per_step
        order = _cached_order(self.index, self.settings.seed, epoch, self.settings.shuffle_shards)
        return epoch, order[start : start + self.schedule.visits_per_step]

    def clips(self, epoch: int, videos: np.ndarray) -> np.ndarray:
        """The clips that visits of these videos draw in this epoch: [C] int64."""
        drawn = [np.zeros(0, np.int64)]
        for video in videos.tolist():
            first, count = self.index.clips_of(video)
            wanted = self.settings.clips_per_video
            drawn.append(first + drawn_clips(self.settings.seed, epoch, video, count, wanted))
        return np.concatenate(drawn)

    def __getitem__(self, step: int) -> Batch | Fault:
        try:
            epoch, videos = self.visits(step)
            own = videos[rank_slice(len(videos), self.rank, self.size)]
            return collate(self.index, self.clips(epoch, own), step, id_hash(step, videos))
        except (ValueError, OSError) as error:
            return Fault(str(error))


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
    )  # fmt: skip
    batches = iter(loader)
    while True:
        try:
            batch = next(batches, None)
        except RuntimeError as error:  # a loader process died or is too slow
            yield Fault(f"loading failed: {str(error).splitlines()[0]}")
            return
        if batch is None:
            return
        yield batch


def _as_it_is(batch: Batch | Fault) -> Batch | Fault:
    return batch


def validation_batch(index: BagIndex, limit: int) -> Batch | None:
    """Up to `limit` clips spread evenly over the val split, each with its nearest caption."""
    videos = [video for shard in index.videos(VAL) for video in shard.tolist()]
    ranges = [index.clips_of(video) for video in videos]
    clips_C = np.concatenate(
        [np.zeros(0, np.int64)] + [np.arange(first, first + count) for first, count in ranges]
    )
    if not len(clips_C):
        return None
    if len(clips_C) > limit:
        clips_C = clips_C[np.linspace(0, len(clips_C) - 1, limit).astype(np.int64)]
    return collate(index, clips_C, step=-1, id_hash=0, captions_per_clip=1)


def collate(
    index: BagIndex,
    clips_B: np.ndarray,
    step: int,
    id_hash: int,
    *,
    captions_per_clip: int | None = None,
    features: bool = True,
) -> Batch:
    """Gather clips, the captions of their bags, each once, and the clips' feature rows."""
    facts = index.clip_facts(clips_B)
    bags_BA = facts.captions_BA[:, :captions_per_clip]
    caption_ids_N, bag_idx_BA = first_appearance(bags_BA)
    captions = index.caption_facts(caption_ids_N)
    features_BTF, mask_BT = _no_features(len(clips_B), index.feature_dim)
    if features:
        features_BTF, mask_BT = _features(index, facts)
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


def _features(index: BagIndex, facts) -> tuple[np.ndarray, np.ndarray]:
    longest = int(facts.feature_count_B.max(initial=1))
    mask_BT = np.arange(longest) < facts.feature_count_B[:, None]
    features_BTF = np.zeros((*mask_BT.shape, index.feature_dim), np.float16)
    reader = _reader()
    for clip, (shard, offset, start, count) in enumerate(facts.places()):
        tar = index.shards[shard].tar
        features_BTF[clip, :count] = reader.read(tar, offset, index.feature_dim, start, count)
    return features_BTF, mask_BT
