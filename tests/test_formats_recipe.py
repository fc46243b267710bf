"""Recipes: which frames each vector sees, and when features may be mixed."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from pipeline.formats.recipe import PRESETS, Recipe, Sampling
from tests.examples import recipe

RECIPE = recipe(feature_dim=1024, frame_size=224, sampling=PRESETS["half-hertz"])


def windows_by_hand(num_frames: int, frames: int, stride: int, tail: str) -> list[range]:
    """The grid frames of each window, those that the video has alone."""
    windows, start = [], 0
    while start < num_frames:
        window = range(start, min(start + frames, num_frames))
        complete = start + frames <= num_frames
        if complete or not windows or (tail != "drop" and window.stop > windows[-1].stop):
            windows.append(window)
        start += stride
    return windows


@pytest.mark.parametrize("tail", ["drop", "zero", "repeat"])
def test_windows_cover_the_video_as_a_loop_over_frames_says(tail):
    for frames, stride, num_frames in itertools.product((1, 2, 5, 8), (1, 3, 5, 8, 11), range(40)):
        sampling = Sampling(frame_rate=4, frames=frames, stride_seconds=stride / 4, tail=tail)
        windows = windows_by_hand(num_frames, frames, stride, tail)
        case = (frames, stride, num_frames)
        assert sampling.num_vectors(num_frames) == len(windows), case
        assert sampling.valid_frames(num_frames).tolist() == [len(w) for w in windows], case
        starts, stops = sampling.spans(num_frames)
        assert starts.tolist() == [w.start / 4 for w in windows], case
        assert stops.tolist() == [w.stop / 4 for w in windows], case


def test_every_video_with_a_frame_has_a_vector_and_none_without():
    for sampling in PRESETS.values():
        assert sampling.num_vectors(0) == 0
        assert sampling.num_vectors(1) == 1
        assert np.array_equal(sampling.valid_frames(1), [1])


def test_presets_are_those_of_the_published_features():
    found = {n: (s.frame_rate, s.frames, s.stride_frames, s.tail) for n, s in PRESETS.items()}
    assert found == {
        "howto100m-1s": (16, 16, 16, "repeat"),
        "milnce-3.2s": (10, 32, 32, "repeat"),
        "videoclip": (30, 30, 30, "zero"),
        "half-hertz": (8, 16, 16, "repeat"),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frame_rate": 0}, "positive"),
        ({"frames": 0}, "positive"),
        ({"stride_seconds": -1}, "positive"),
        ({"stride_seconds": 0.3}, "whole number"),
        ({"tail": "mirror"}, "'mirror', allowed: drop, zero, repeat"),
    ],
)
def test_samplings_that_make_no_sense_are_refused(change, message):
    values = {"frame_rate": 8, "frames": 16, "stride_seconds": 1, "tail": "zero", **change}
    with pytest.raises(ValueError, match=message):
        Sampling(**values)


def test_a_recipe_survives_json():
    assert Recipe.from_dict(RECIPE.to_dict()) == RECIPE


def test_the_identity_moves_with_every_field():
    others = [
        dataclasses.replace(RECIPE, **{name: value})
        for name, value in {
            "encoder": "c3d",
            "weights_sha256": "ac",
            "output": "embedding",
            "feature_dim": 512,
            "frame_size": 112,
            "sampling": PRESETS["videoclip"],
            "precision": "bfloat16",
            "feature_version": 2,
        }.items()
    ]
    assert len(others) == len(dataclasses.fields(Recipe))
    assert len({recipe.identity for recipe in [RECIPE, *others]}) == len(others) + 1
    assert dataclasses.replace(RECIPE).identity == RECIPE.identity


def test_empty_features_are_refused():
    with pytest.raises(ValueError, match="positive sizes"):
        dataclasses.replace(RECIPE, feature_dim=0)


def test_a_whole_number_is_the_same_however_it_is_written():
    grid = PRESETS["howto100m-1s"]
    same = dataclasses.replace(grid, frame_rate=16.0, stride_seconds=1.0)
    recipe = dataclasses.replace(RECIPE, sampling=grid)
    assert dataclasses.replace(RECIPE, sampling=same).identity == recipe.identity
