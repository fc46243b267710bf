"""Finished videos of an unfinished shard: kept whole, and only for the recipe that made them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipeline.formats.partial import partial_path, read_partial, write_partial
from tests.encoded_videos import facts, video

LONG_ID = "../" + "ü" * 300


def test_a_finished_video_survives_whatever_its_id(tmp_path):
    kept = video(LONG_ID, seed=3)
    write_partial(tmp_path, kept, "recipe")
    found = read_partial(tmp_path, LONG_ID, "recipe")
    assert found.facts == kept.facts
    assert np.array_equal(found.features, kept.features)
    assert found.features.dtype == np.float16
    assert [path.parent for path in tmp_path.rglob("*")] == [tmp_path]


def test_another_recipe_or_id_finds_nothing(tmp_path):
    write_partial(tmp_path, video("a"), "recipe")
    assert read_partial(tmp_path, "a", "other recipe") is None
    assert read_partial(tmp_path, "b", "recipe") is None


def test_the_newest_one_counts(tmp_path):
    write_partial(tmp_path, video("a", seed=1), "recipe")
    newer = dataclasses.replace(video("a", seed=2), facts=facts("a", mtime_ns=8))
    write_partial(tmp_path, newer, "recipe")
    assert read_partial(tmp_path, "a", "recipe").facts.mtime_ns == 8


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * 99])
def test_a_damaged_file_is_named(tmp_path, damage):
    write_partial(tmp_path, video("a"), "recipe")
    path = partial_path(tmp_path, "a")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="is damaged"):
        read_partial(tmp_path, "a", "recipe")


def test_a_flipped_bit_of_the_features_is_noticed(tmp_path):
    kept = video("a")
    write_partial(tmp_path, kept, "recipe")
    path = partial_path(tmp_path, "a")
    data = bytearray(path.read_bytes())
    data[data.index(kept.features.tobytes()) + 5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="is damaged"):
        read_partial(tmp_path, "a", "recipe")
