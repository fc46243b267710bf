"""A batch against a slow reading of the same files, also where some cannot be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.formats.shard import read_features
from tests.synthetic_bags import Results, make_results, step_data
from trainer.bag_index import BagIndex
from trainer.batch import Batch, first_appearance, unpack_clips
from trainer.data import StepData


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    return make_results(tmp_path_factory.mktemp("results"))


def slow_clip(index: BagIndex, clip: int) -> tuple:
    """Features, captions' numbers and times of one clip, found by walking through the files."""
    captions = 0
    for files, bags in zip(index.shards, index.bags, strict=True):
        if clip < bags.num_clips:
            video = bags.clip_video[clip]
            with open(files.tar, "rb") as tar:
                features = read_features(
                    tar.fileno(), int(bags.feature_offset[video]), index.feature_dim,
                    int(bags.clip_feature_start[clip]), int(bags.clip_feature_count[clip]),
                )  # fmt: skip
            bag = [captions + int(k) for k in bags.bag_idx[clip] if k >= 0]
            return features, bag, (bags.clip_start[clip], bags.clip_stop[clip])
        clip -= bags.num_clips
        captions += bags.num_captions
    raise AssertionError


def caption_ids(batch: Batch) -> list[list[int]]:
    """Token ids of a batch's captions, from its distinct words."""
    words, places, offsets = batch.words
    ends = [*offsets[1:].tolist(), len(places)]
    return [
        words[places[start:end]].tolist() for start, end in zip(offsets.tolist(), ends, strict=True)
    ]


def test_a_batch_holds_what_the_files_say(results):
    data = step_data(results)
    index = data.index
    all_ids = [ids[ids > 0].tolist() for bags in index.bags for ids in bags.cap_ids]
    for step in range(data.schedule.num_steps):
        batch = data[step]
        assert batch.features_BTF.dtype == torch.float16
        for row, clip in enumerate(batch.clip_ids_B.tolist()):
            features, bag, times = slow_clip(index, clip)
            mask = batch.mask_BT[row]
            assert torch.equal(batch.features_BTF[row][mask], torch.from_numpy(features.copy()))
            assert not batch.features_BTF[row][~mask].any()
            places = batch.bag_idx_BA[row]
            assert batch.caption_ids_N[places[places >= 0]].tolist() == bag
            keys = unpack_clips(batch.clip_keys_B3.numpy(), batch.bag_idx_BA.numpy())
            assert (keys.start_B[row], keys.stop_B[row]) == times
        for ids, caption in zip(caption_ids(batch), batch.caption_ids_N.tolist(), strict=True):
            assert ids == all_ids[caption]


def test_captions_are_distinct_in_order_of_first_appearance(results):
    batch = step_data(results)[0]
    places = batch.bag_idx_BA[batch.bag_idx_BA >= 0].tolist()
    assert list(dict.fromkeys(places)) == list(range(len(batch.caption_ids_N)))
    captions, bags = first_appearance(np.array([[9, 4, -1], [4, 7, 9]]))
    assert captions.tolist() == [9, 4, 7]
    assert bags.tolist() == [[0, 1, -1], [1, 2, 0]]


@pytest.mark.parametrize("damage", ["short", "not finite"])
def test_videos_that_cannot_be_read_leave_their_batch_and_nothing_else(tmp_path, damage):
    """The others of the same step keep their rows, bags and order."""
    results = make_results(tmp_path)
    whole = step_data(results)
    tar = whole.index.shards[0].tar
    data = bytearray(tar.read_bytes())
    if damage == "not finite":
        data = data.replace(np.float16(data_value(tar, whole.index)).tobytes(), b"\x00\x7c")
    tar.write_bytes(data[:6000] if damage == "short" else data)
    expected = [step_data(make_results(tmp_path / "whole"))[step] for step in range(8)]
    lost = 0
    for step in range(8):
        batch = step_data(results)[step]
        bad = [fault.video for fault in batch.unreadable]
        lost += len(bad)
        kept = ~np.isin(expected[step].clip_keys_B3[:, 0].numpy(), bad)
        assert torch.equal(batch.clip_ids_B, expected[step].clip_ids_B[kept])
        assert batch.id_hash == expected[step].id_hash
        for row, clip in enumerate(batch.clip_ids_B.tolist()):
            places = batch.bag_idx_BA[row]
            assert batch.caption_ids_N[places[places >= 0]].tolist() == slow_bag(whole, clip)
        assert set(batch.caption_keys_N4[:, 0].tolist()).isdisjoint(bad)
        for fault in batch.unreadable:
            assert f"run snakemake --cores N --forcerun {tar}" in fault.reason
            assert ("shorter" if damage == "short" else "not finite") in fault.reason
    assert lost


def data_value(tar, index) -> float:
    """The first feature of the first video of shard 0."""
    with open(tar, "rb") as file:
        offset = int(index.bags[0].feature_offset[0])
        return float(read_features(file.fileno(), offset, index.feature_dim, 0, 1)[0, 0])


def slow_bag(data: StepData, clip: int) -> list[int]:
    """The captions' numbers of a clip, without reading features."""
    for base, bags in zip(data.index._captions, data.index.bags, strict=False):
        if clip < bags.num_clips:
            return [int(base) + int(k) for k in bags.bag_idx[clip] if k >= 0]
        clip -= bags.num_clips
    raise AssertionError
