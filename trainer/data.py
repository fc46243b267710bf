"""The batches of a rank, step by step, in the order that `trainer.order` gives.

A step's batch is the same whoever loads it: this process or any number of loader processes.

Letters: B clips, G visits of a step, C any clips.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from pipeline.formats.bags import TRAIN, holds_twice
from pipeline.formats.names import again
from trainer.bag_index import BagIndex, ShardFiles, open_index
from trainer.batch import Batch, Fault, collate
from trainer.order import Schedule, drawn_clips, epoch_order, rank_slice
from trainer.settings import TrainSettings
from trainer.signals import sparing_children, start_loader


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
    """A step holds a video and a clip once, a bag a caption once, and a rank its own captions.

    Raises:
        ValueError: one of them does not hold: a caption could have two owners, or count twice.
    """
    clips_B = batch.clip_ids_B.numpy()
    if len(np.unique(videos)) != len(videos) or len(np.unique(clips_B)) != len(clips_B):
        raise ValueError(f"step {batch.step} holds a video or a clip twice")
    twice_B = holds_twice(batch.bag_idx_BA.numpy())
    if twice_B.any():
        clip = int(clips_B[int(np.argmax(twice_B))])
        raise ValueError(
            f"step {batch.step}: the bag of clip {clip} holds a caption twice: {again('bags')}"
        )
    foreign_N = ~np.isin(batch.caption_keys_N4[:, 0].numpy(), own)
    if foreign_N.any():
        caption = int(batch.caption_ids_N[int(np.argmax(foreign_N))])
        raise ValueError(
            f"step {batch.step}: a bag holds caption {caption} of another video: {again('bags')}"
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


def _as_it_is(batch: Any) -> Any:
    return batch
