"""Clip geometry against slow loops that follow the definitions word by word."""

import numpy as np
import pytest

from pipeline.clips import (
    CLIPS_AT_ONCE,
    clips_around_captions,
    clips_on_grid,
    feature_rows,
    nearest_captions,
)


def spans(generator, count, end):
    starts = generator.uniform(0, end, count).round(2)
    return starts, starts + generator.uniform(0, 6, count).round(2)


def test_clips_stand_around_the_middle_of_their_caption():
    starts, stops = clips_around_captions(np.array([10.0]), np.array([11.0]), 4.0, 60.0)
    assert (starts[0], stops[0]) == (8.5, 12.5)


def test_clips_at_the_ends_are_shifted_inside_and_keep_their_length():
    starts, stops = clips_around_captions(np.array([0.0, 59.0]), np.array([1.0, 75.0]), 4.0, 60.0)
    assert starts.tolist() == [0.0, 56.0]
    assert stops.tolist() == [4.0, 60.0]


def test_a_video_shorter_than_a_clip_is_one_clip():
    starts, stops = clips_around_captions(np.array([1.0]), np.array([2.0]), 4.0, 2.5)
    assert (starts[0], stops[0]) == (0.0, 2.5)


def test_grid_clips_cover_the_video_and_end_with_it():
    starts, stops = clips_on_grid(2.0, 3.0, 7.0)
    assert starts.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert stops.tolist() == [3.0, 5.0, 7.0, 7.0]


def test_feature_rows_are_those_whose_middle_lies_inside():
    generator = np.random.default_rng(0)
    middles = np.sort(generator.uniform(0, 50, 40).round(1))
    starts = generator.uniform(0, 50, 200).round(1)
    stops = starts + generator.uniform(0, 5, 200).round(1)
    first, count = feature_rows(starts, stops, middles)
    for i in range(200):
        expected = [t for t, m in enumerate(middles) if starts[i] <= m < stops[i]]
        assert list(range(first[i], first[i] + count[i])) == expected


@pytest.mark.parametrize("num_clips", [1, 30, CLIPS_AT_ONCE + 7])
@pytest.mark.parametrize(("num_captions", "bag_size"), [(0, 3), (1, 4), (40, 5), (40, 64)])
def test_nearest_captions_equal_the_literal_loop(num_clips, num_captions, bag_size):
    generator = np.random.default_rng(num_clips + num_captions + bag_size)
    clip_starts, clip_stops = spans(generator, num_clips, 60)
    cap_starts, cap_stops = spans(generator, num_captions, 60)
    found = nearest_captions(
        (clip_starts, clip_stops), (cap_starts, cap_stops), window_seconds=2.5, bag_size=bag_size
    )
    for i in range(num_clips):
        candidates = []
        for row in range(num_captions):
            gap = max(0, cap_starts[row] - clip_stops[i], clip_starts[i] - cap_stops[row])
            middle = (cap_starts[row] + cap_stops[row]) / 2
            apart = abs(middle - (clip_starts[i] + clip_stops[i]) / 2)
            if round(gap, 6) <= 2.5:
                candidates.append((round(gap, 6), round(apart, 6), row))
        expected = [row for _, _, row in sorted(candidates)][:bag_size]
        assert found[i].tolist() == expected + [-1] * (bag_size - len(expected))


def test_equal_distances_keep_the_order_of_the_table():
    clips = (np.array([10.0]), np.array([12.0]))
    captions = (np.array([13.0, 8.0, 13.0]), np.array([14.0, 9.0, 14.0]))
    found = nearest_captions(clips, captions, window_seconds=1.0, bag_size=3)
    assert found.tolist() == [[0, 1, 2]]
