"""Shards as they are written: any WebDataset reader streams them, the same bytes each time."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile

import numpy as np
import pytest
import webdataset

from pipeline.formats.shard import read_index
from pipeline.formats.shard_writer import write_shard
from tests.encoded_videos import IDS, RECIPE, VIDEOS, failed, video


@pytest.fixture
def shard(tmp_path):
    """A tar and its index, of `VIDEOS`."""
    paths = tmp_path / "00000.tar", tmp_path / "00000.parquet"
    write_shard(*paths, VIDEOS, RECIPE, {"torch": "x"})
    return paths


def test_plain_webdataset_streams_ids_features_and_times(shard):
    encoded = {v.facts.video_id: v for v in VIDEOS if v.features is not None}
    samples = list(webdataset.WebDataset(str(shard[0]), shardshuffle=False))
    assert [json.loads(sample["json"])["video_id"] for sample in samples] == list(encoded)
    for sample in samples:
        described = json.loads(sample["json"])
        expected = encoded[described["video_id"]]
        features = np.load(io.BytesIO(sample["features.npy"]), allow_pickle=False)
        assert features.dtype == np.float16
        assert np.array_equal(features, expected.features)
        starts, stops = RECIPE.sampling.spans(expected.facts.num_frames)
        assert described["start_seconds"] == starts.tolist()
        assert described["end_seconds"] == stops.tolist()
        assert len(described["valid_frames"]) == len(features)
        assert described["recipe"] == RECIPE.to_dict()
        assert described["recipe_identity"] == RECIPE.identity
        assert described["source"] == {"size_bytes": 100, "mtime_ns": 7}


def test_webdatasets_own_decoder_understands_the_arrays(shard):
    samples = list(webdataset.WebDataset(str(shard[0]), shardshuffle=False).decode())
    assert np.array_equal(samples[0]["features.npy"], VIDEOS[1].features)
    assert samples[0]["json"]["video_id"] == "plain"


def test_keys_are_safe_names_and_never_collide(shard):
    keys = [
        sample["__key__"] for sample in webdataset.WebDataset(str(shard[0]), shardshuffle=False)
    ]
    assert keys == [row.key for row in read_index(shard[1]).rows if row.encoded]
    assert len(set(keys)) == len(IDS)
    assert not set("".join(keys)) & set("./ ü")


def test_the_same_videos_give_the_same_bytes(shard, tmp_path):
    again = tmp_path / "b" / "1.tar", tmp_path / "b" / "1.parquet"
    write_shard(*again, iter(VIDEOS), RECIPE, {"torch": "x"})
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in shard]


def test_an_empty_shard_is_a_valid_tar(tmp_path):
    write_shard(tmp_path / "1.tar", tmp_path / "1.parquet", [failed("a")], RECIPE, {})
    with tarfile.open(tmp_path / "1.tar") as tar:
        assert tar.getmembers() == []
    assert [row.encoded for row in read_index(tmp_path / "1.parquet").rows] == [False]


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_never_reach_a_shard(tmp_path, number):
    bad = video("bad")
    bad.features[2, 3] = number
    with pytest.raises(ValueError, match="'bad' hold NaN or infinity"):
        write_shard(tmp_path / "1.tar", tmp_path / "1.parquet", [video("a"), bad], RECIPE, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: x[:, :5], np.float32])
def test_features_of_another_shape_or_type_are_refused(tmp_path, change):
    wrong = dataclasses.replace(video("a"), features=change(video("a").features))
    with pytest.raises(ValueError, match=r"features of 'a' are .* expected float16 \(4, 6\)"):
        write_shard(tmp_path / "1.tar", tmp_path / "1.parquet", [wrong], RECIPE, {})
