"""A rank's batch: clips, the captions of their bags, and the clips' rows out of the shards.

Bag files are mapped, not read; of a shard only the rows of the drawn clips are read.

Letters: B clips, T feature rows of a clip, F numbers of a feature row, N distinct captions, L token
ids of a caption, A captions of a bag.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.formats.names import again
from pipeline.formats.shard import read_features
from trainer.bag_index import BagIndex, ClipFacts
from trainer.model import CaptionWords, caption_words
from trainer.negatives import CaptionKeys, ClipKeys
from trainer.tiles import on_device

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
        return replace(
            self,
            features_BTF=on_device(self.features_BTF, device),
            mask_BT=on_device(self.mask_BT, device),
            words=CaptionWords(*(on_device(part, device) for part in self.words)),
        )

    def pin_memory(self) -> Batch:
        """The same batch in memory from which a GPU copies without waiting."""
        pinned: dict[str, Any] = {}
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
        self._files: OrderedDict[Path, FileIO] = OrderedDict()

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
            raise ValueError(f"{tar}: {error}; {again(tar)}") from None


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
    reader = _reader()
    faults: dict[int, str] = {}
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
        fault = f"{tar}: features that are not finite; {again(tar)}"
        faults.setdefault(int(facts.video_B[clip]), fault)
    return features_BTF, mask_BT, tuple(Unreadable(*item) for item in faults.items())
