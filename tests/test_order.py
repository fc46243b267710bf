"""The data order: a pure function that visits each video once an epoch, in whole steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trainer.order import drawn_clips, epoch_order, rank_slice, schedule, shuffled


def shards(*sizes: int) -> list[np.ndarray]:
    ends = np.cumsum([0, *sizes])
    return [np.arange(a, b) for a, b in itertools.pairwise(ends)]


def test_an_epoch_visits_every_video_once_and_differs_from_others():
    videos = shards(5, 0, 1, 9)
    first = epoch_order(3, 0, videos, 2)
    assert sorted(first.tolist()) == list(range(15))
    assert first.tolist() == epoch_order(3, 0, videos, 2).tolist()
    assert first.tolist() != epoch_order(3, 1, videos, 2).tolist()
    assert first.tolist() != epoch_order(4, 0, videos, 2).tolist()


def test_the_order_is_the_same_for_ever():
    """A change of these numbers would break the resuming of every unfinished run."""
    assert epoch_order(0, 0, shards(3, 4), 1).tolist() == [4, 3, 5, 6, 2, 0, 1]
    assert drawn_clips(0, 1, 5, 20, 4).tolist() == [4, 6, 10, 15]


def test_groups_of_shards_stay_together():
    videos = shards(*[4] * 10)
    order = epoch_order(1, 0, videos, 2) // 4
    for start in range(0, 40, 8):
        assert len(set(order[start : start + 8].tolist())) == 2


def test_a_shards_videos_spread_over_their_group():
    """With all shards in one group, the place of a shard's videos is uniform (chi², fixed seed)."""
    order = epoch_order(7, 0, shards(*[200] * 10), 10) // 200
    counts = np.array([np.bincount(part, minlength=10) for part in np.split(order, 20)])
    assert ((counts - 10) ** 2 / 10).sum() < 250  # 171 degrees of freedom: p < 1e-4


def test_drawn_clips_are_distinct_in_time_order_and_spread_over_epochs():
    seen = set()
    for epoch in range(40):
        drawn = drawn_clips(0, epoch, 17, 10, 4).tolist()
        assert drawn == sorted(set(drawn))
        assert len(drawn) == 4
        seen |= set(drawn)
    assert seen == set(range(10))
    assert drawn_clips(0, 0, 17, 3, 8).tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_rank_slices_cover_a_step_once(size):
    visits = np.arange(7)
    parts = [visits[rank_slice(7, rank, size)].tolist() for rank in range(size)]
    assert list(itertools.chain(*parts)) == visits.tolist()
    assert all(parts)


@pytest.mark.parametrize(
    ("videos", "wanted", "epochs", "max_steps", "steps_per_epoch", "num_steps", "dropped"),
    [
        (20, 8, 3, None, 2, 6, 4),
        (16, 8, 3, None, 2, 6, 0),
        (5, 8, 3, None, 1, 3, 0),
        (20, 8, 3, 4, 2, 4, 4),
        (20, 8, 3, 99, 2, 6, 4),
    ],
)
def test_schedule(videos, wanted, epochs, max_steps, steps_per_epoch, num_steps, dropped):
    plan = schedule(videos, wanted, epochs, max_steps)
    assert (plan.steps_per_epoch, plan.num_steps) == (steps_per_epoch, num_steps)
    assert plan.dropped_per_epoch == dropped


def test_shuffled_draws_differ_with_every_part_of_the_key():
    base = shuffled(50, 1, 2, 3).tolist()
    keys = ((0, 2, 3), (1, 0, 3), (1, 2, 0), (1, 2, 3, 0))
    assert base not in [shuffled(50, *key).tolist() for key in keys]
