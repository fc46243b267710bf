"""Frames on the grid, against the rule of the fps filter written out; windows against slices."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import PRESETS, Sampling
from pipeline.grid import MAX_GAP_SECONDS, Clock, FrameTimes, WindowBuffer, round_half_away

MILLISECONDS = Fraction(1, 1000)


def sampling(rate: float = 10, frames: int = 1, stride: int = 1, tail: str = "repeat") -> Sampling:
    return Sampling(frame_rate=rate, frames=frames, stride_seconds=stride / rate, tail=tail)


def times(rate: float = 10, zero_seconds: float = 0, usual_step: int = 40) -> FrameTimes:
    start = Fraction(zero_seconds).limit_denominator(1000)
    clock = Clock(MILLISECONDS, start_seconds=start, frame_rate=rate)
    return FrameTimes(clock, usual_step=usual_step)


def shown(found: FrameTimes, stamps: list[tuple]) -> list[int]:
    """Which frame (by its number) each slot shows."""
    slots, pending = [], None
    for number, stamp in enumerate(stamps):
        before = found.place(*stamp)
        if before is None:
            continue
        slots += [pending] * len(before)
        pending = number
    return slots + [pending] * len(found.finish()) if pending is not None else []


@pytest.mark.parametrize(
    ("value", "rounded"), [("1/2", 1), ("3/2", 2), ("-1/2", -1), ("49/100", 0), ("-3/2", -2)]
)
def test_halves_round_away_from_zero(value, rounded):
    assert round_half_away(*Fraction(value).as_integer_ratio()) == rounded


def test_a_slot_shows_the_last_frame_that_is_nearest_to_it_or_before():
    rng = random.Random(3)
    for _ in range(50):
        rate = rng.choice([8, 10, 16, 29.97])
        ticks = sorted(rng.sample(range(5000), rng.randint(1, 60)))
        found = shown(times(rate), [(tick, None, 40) for tick in ticks])
        nearest = [int(tick * rate / 1000 + 0.5) for tick in ticks]
        end = max(1, int((ticks[-1] + 40) * rate / 1000 + 0.5))
        literal = [
            max((k for k, slot in enumerate(nearest) if slot <= max(n, nearest[0])), default=0)
            for n in range(end)
        ]
        assert found == literal, (rate, ticks)


def test_the_container_start_is_time_zero():
    stamps = [(11400 + 40 * k, None, 40) for k in range(100)]
    assert shown(times(zero_seconds=11.4), stamps) == shown(
        times(), [(40 * k, None, 40) for k in range(100)]
    )


def test_a_late_start_is_filled_with_the_first_grid_frame():
    found = times(rate=16)
    slots = shown(found, [(1500 + 40 * k, None, 40) for k in range(100)])
    assert found.num_frames == len(slots) == 88
    assert slots[:24] == [slots[24]] * 24


def test_frames_before_the_container_start_are_not_shown():
    slots = shown(times(), [(tick, None, 100) for tick in range(-500, 500, 100)])
    assert slots == [5, 6, 7, 8, 9]


def test_one_short_frame_has_one_slot():
    found = times()
    assert shown(found, [(0, None, 10)]) == [0]
    assert found.num_frames == 1


def test_the_last_frame_lasts_as_long_as_the_step_before_it_when_it_does_not_say():
    assert len(shown(times(usual_step=1), [(0, None, 0), (500, None, 0)])) == 10


def test_decoding_order_places_frames_whose_pts_run_backwards():
    # AVI: what stands in pts is a guess; the dts never runs backwards.
    pts, dts = [0, 300, 100, 600, 400, 900], [0, 100, 200, 300, 400, 500]
    stamps = [(p, d, 100) for p, d in zip(pts, dts, strict=True)]
    assert shown(times(), stamps)[3:] == [3, 4, 5]


def test_frames_without_timestamps_follow_the_one_before_them():
    found = times()
    stamps = [(None, None, 0), (0, None, 100), (None, None, 100), (200, None, 100)]
    assert shown(found, stamps) == [1, 2, 3]
    assert found.decoded_seconds == pytest.approx(0.3)


def test_no_timestamp_at_all_leaves_first_unset():
    found = times()
    assert [found.place(None, None, 40) for _ in range(3)] == [None] * 3
    assert found.first is None


@pytest.mark.parametrize("restart", [0, 100, 2000])
def test_a_restart_of_the_clock_is_a_fault(restart):
    found = times()
    for tick in range(0, 4000, 40):
        found.place(tick, None, 40)
    with pytest.raises(VideoFault, match="jump back") as caught:
        found.place(restart, None, 40)
    assert caught.value.reason is Reason.DISCONTINUOUS


def test_shuffled_neighbours_are_no_fault():
    found = times()
    slots = shown(found, [(tick, None, 40) for tick in (0, 80, 40, 160, 120, 200)])
    assert len(slots) == found.num_frames == 2


@pytest.mark.parametrize("tick", [MAX_GAP_SECONDS * 1000 + 1, 2**62])
def test_a_wild_timestamp_is_a_fault_and_fills_nothing(tick):
    for before in ([], [0]):
        found = times()
        for earlier in before:
            found.place(earlier, None, 40)
        with pytest.raises(VideoFault, match="jump ahead"):
            found.place(tick, None, 40)


@pytest.mark.parametrize(("until", "slots"), [(None, 2), (0, 2), (1000, 10), (10**9, 36_002)])
def test_the_last_frame_may_stand_longer(until, slots):
    found = times()
    found.place(0, None, 40)
    found.place(160, None, 40)
    found.finish(until)
    assert found.num_frames == slots


def test_a_wild_duration_is_cut():
    found = times()
    found.place(0, None, 2**62)
    assert len(found.finish()) == MAX_GAP_SECONDS * 10


@pytest.mark.parametrize("tail", ["repeat", "zero", "drop"])
def test_windows_are_slices_of_the_grid(tail):
    rng = random.Random(5)
    for _ in range(200):
        grid = sampling(8, rng.randint(1, 6), rng.randint(1, 9), tail)
        num_frames = rng.randint(0, 40)
        pictures = np.arange(1, num_frames + 1, dtype=np.uint8)[:, None, None, None]
        buffer = WindowBuffer(grid)
        windows = [
            buffer.push(slot, pictures[slot]) for slot in range(num_frames) if buffer.needs(slot)
        ]
        windows = [w for w in [*windows, buffer.finish(num_frames)] if w is not None]
        assert len(windows) == grid.num_vectors(num_frames)
        for index, window in enumerate(windows):
            start = index * grid.stride_frames
            own = pictures[start : start + grid.frames]
            fill = pictures[-1:] if tail != "zero" else np.zeros_like(pictures[-1:])
            literal = np.concatenate([own, *[fill] * (grid.frames - len(own))])
            np.testing.assert_array_equal(window, literal)


def test_a_window_stays_what_it_was():
    grid = PRESETS["half-hertz"]
    buffer, windows = WindowBuffer(grid), []
    for slot in range(64):
        window = buffer.push(slot, np.full((2, 2, 3), slot, np.uint8))
        windows += [] if window is None else [window]
    assert [int(window[0, 0, 0, 0]) for window in windows] == [0, 16, 32, 48]
