"""Which videos a step visits and which clips it draws: pure functions of (seed, epoch, step).

Nothing here knows of ranks, workers or history, so a run can be continued anywhere, on any number
of ranks. All draws are raw Philox numbers, whose stream numpy keeps for ever.

Letters: S shards, V videos, G visits of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_SHARDS, _VIDEOS, _CLIPS = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a run is cut into epochs and steps."""

    num_videos: int
    visits_per_step: int
    """G, or all videos where there are fewer."""
    steps_per_epoch: int
    num_steps: int
    """Of the whole run."""

    @property
    def dropped_per_epoch(self) -> int:
        """Videos of an epoch that fill no whole step; another epoch drops others."""
        return self.num_videos - self.visits_per_step * self.steps_per_epoch

    def epoch_of(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and the step's number within it."""
        return divmod(step, self.steps_per_epoch)


def schedule(num_videos: int, visits_per_step: int, epochs: int, max_steps: int | None) -> Schedule:
    """Whole steps only; an epoch of fewer videos than a step wants is one step of all videos."""
    visits = min(visits_per_step, num_videos)
    steps_per_epoch = num_videos // visits
    num_steps = epochs * steps_per_epoch
    if max_steps is not None:
        num_steps = min(num_steps, max_steps)
    return Schedule(num_videos, visits, steps_per_epoch, num_steps)


def epoch_order(
    seed: int, epoch: int, videos_of_shards: list[np.ndarray], shuffle_shards: int
) -> np.ndarray:
    """All videos of an epoch: shards shuffled, then videos within groups of shards: [V] int64."""
    shards_S = shuffled(len(videos_of_shards), seed, epoch, _SHARDS)
    groups = []
    for number, start in enumerate(range(0, len(shards_S), shuffle_shards)):
        group = [videos_of_shards[shard] for shard in shards_S[start : start + shuffle_shards]]
        videos = np.concatenate(group)
        groups.append(videos[shuffled(len(videos), seed, epoch, _VIDEOS, number)])
    return np.concatenate(groups) if groups else np.zeros(0, np.int64)


def drawn_clips(seed: int, epoch: int, video: int, num_clips: int, wanted: int) -> np.ndarray:
    """Which of a video's clips a visit takes, in time order, none twice."""
    return np.sort(shuffled(num_clips, seed, epoch, _CLIPS, video)[:wanted])


def rank_slice(num_visits: int, rank: int, size: int) -> slice:
    """A rank's part of a step's visits."""
    return slice(rank * num_visits // size, (rank + 1) * num_visits // size)


def shuffled(count: int, *key: int) -> np.ndarray:
    """A permutation of `count` things that depends on the key alone: [count] int64."""
    # SeedSequence ignores zeros at the end of its entropy, hence the 1.
    raw = np.random.Philox(np.random.SeedSequence((*key, 1))).random_raw(count)
    return np.argsort(raw, kind="stable")
