"""Batches against a slow reading of the same files, the same with any ranks and workers."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from pipeline.formats.bags import TRAIN, read_bags, write_bags
from pipeline.formats.shard import read_features
from tests.synthetic_bags import NUM_WORDS, Results, make_results, train_settings
from trainer.bag_index import BagIndex, files_of_plan, open_index
from trainer.batch import Batch, collate, first_appearance, unpack_captions, unpack_clips
from trainer.data import StepData, check_owners, load_steps
from trainer.order import schedule


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    return make_results(tmp_path_factory.mktemp("results"))


def files_of(results: Results) -> list:
    root = results.root
    return files_of_plan(root / "plan", root / "bags", root / "shards")


def step_data(results: Results, rank: int = 0, size: int = 1, **changes) -> StepData:
    settings = train_settings(**changes)
    files = files_of(results)
    num_videos = sum(len(videos) for videos in open_index(files).videos(TRAIN))
    plan = schedule(num_videos, settings.visits_per_step, settings.epochs, settings.max_steps)
    return StepData(files, settings, plan, rank=rank, size=size)


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


def test_a_step_holds_a_video_once_and_a_caption_has_one_owner(results):
    for step in range(4):
        parts = [step_data(results, rank, 3)[step] for rank in range(3)]
        videos = [set(part.clip_keys_B3[:, 0].tolist()) for part in parts]
        captions = [set(part.caption_ids_N.tolist()) for part in parts]
        for sets in (videos, captions):
            assert sum(map(len, sets)) == len(set().union(*sets))
        assert [len(part.clip_ids_B) for part in parts] == [2 * len(own) for own in videos]
        owners = unpack_captions(parts[0].caption_keys_N4.numpy()).video_N
        assert set(owners.tolist()) <= videos[0]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_together_hold_the_step_of_one_process_in_its_order(results, size):
    alone = step_data(results)
    for step in range(alone.schedule.num_steps):
        parts = [step_data(results, rank, size)[step] for rank in range(size)]
        whole = alone[step]
        for name in ("clip_ids_B", "caption_ids_N"):
            assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))
        assert {part.id_hash for part in parts} == {whole.id_hash}


def test_every_training_video_is_visited_once_an_epoch(results):
    data = step_data(results)
    expected = np.concatenate(data.index.videos(TRAIN)).tolist()
    for epoch in range(2):
        steps = range(data.schedule.steps_per_epoch)
        visited = [data.visits(epoch * len(steps) + step)[1] for step in steps]
        assert sorted(np.concatenate(visited).tolist()) == expected


def test_the_hash_tells_steps_apart(results):
    data = step_data(results)
    assert len({data[step].id_hash for step in range(data.schedule.num_steps)}) == 8


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_give_the_same_batches(results, workers):
    data = step_data(results)
    arguments = {"timeout_seconds": 60, "pin": False}
    expected = list(load_steps(data, 3, workers=0, **arguments))
    found = list(load_steps(data, 3, workers=workers, **arguments))
    assert len(found) == len(expected) == 5
    for a, b in zip(found, expected, strict=True):
        for field in dataclasses.fields(Batch):
            x, y = getattr(a, field.name), getattr(b, field.name)
            if field.name == "words":
                assert all(torch.equal(p, q) for p, q in zip(x, y, strict=True))
            else:
                assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def test_data_travels_to_a_worker_without_its_arrays(results):
    data = step_data(results)
    before = len(pickle.dumps(data))
    assert isinstance(data[0], Batch)
    assert len(pickle.dumps(data)) == before


def test_stale_files_outside_the_plan_do_not_count(results, tmp_path):
    copy = make_results(tmp_path)
    (copy.root / "bags/00099.npz").write_bytes(b"stale")
    assert len(open_index(files_of(copy)).bags) == 3


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


def test_a_caption_with_two_owners_is_named(tmp_path):
    results = make_results(tmp_path, videos_of_shards=(4,))
    batch = step_data(results)[0]
    videos = np.unique(batch.clip_keys_B3[:, 0].numpy())
    check_owners(batch, videos, videos)
    with pytest.raises(ValueError, match=r"a bag holds caption \d+ of another video"):
        check_owners(batch, videos, videos[1:])
    with pytest.raises(ValueError, match="holds a video or a clip twice"):
        check_owners(batch, np.repeat(videos, 2), videos)


def rewrite(path, **changes):
    bags = read_bags(path)
    arrays = {field.name: getattr(bags, field.name) for field in dataclasses.fields(bags)}
    arrays = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in arrays.items()
    }
    write_bags(path, type(bags)(**(arrays | changes)))


def test_missing_bags_and_an_empty_plan_are_named(tmp_path):
    results = make_results(tmp_path)
    (results.root / "bags/00002.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"00002\.npz is missing: run snakemake"):
        open_index(files_of(results))
    with pytest.raises(FileNotFoundError, match="holds no plan"):
        files_of_plan(tmp_path / "nowhere", tmp_path, tmp_path)


def test_a_token_id_beyond_the_vocabulary_never_reaches_a_model(tmp_path):
    results = make_results(tmp_path)
    path = results.root / "bags/00000.npz"
    ids = read_bags(path).cap_ids.copy()
    ids[:, 0] = NUM_WORDS + 1
    rewrite(path, cap_ids=ids)
    index = open_index(files_of(results))
    with pytest.raises(ValueError, match=rf"token ids span .* allowed: \[0, {NUM_WORDS}\]"):
        collate(index, np.array([0]), 0, 0)
