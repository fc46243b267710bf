"""The steps of training: each video once an epoch, the same with any ranks and workers."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from pipeline.formats.bags import TRAIN
from tests.synthetic_bags import Results, make_results, step_data
from trainer.batch import Batch, unpack_captions
from trainer.data import check_owners, load_steps


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    return make_results(tmp_path_factory.mktemp("results"))


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


def test_a_caption_with_two_owners_is_named(tmp_path):
    results = make_results(tmp_path, videos_of_shards=(4,))
    batch = step_data(results)[0]
    videos = np.unique(batch.clip_keys_B3[:, 0].numpy())
    check_owners(batch, videos, videos)
    with pytest.raises(ValueError, match=r"a bag holds caption \d+ of another video"):
        check_owners(batch, videos, videos[1:])
    with pytest.raises(ValueError, match="holds a video or a clip twice"):
        check_owners(batch, np.repeat(videos, 2), videos)


def test_a_bag_that_holds_a_caption_twice_is_named_before_it_counts_twice(tmp_path):
    batch = step_data(make_results(tmp_path, videos_of_shards=(4,)))[0]
    videos = np.unique(batch.clip_keys_B3[:, 0].numpy())
    bags_BA = batch.bag_idx_BA.clone()
    bags_BA[2, 1] = bags_BA[2, 0]
    line = rf"step 0: the bag of clip {batch.clip_ids_B[2]} holds a caption twice: run .*bags"
    with pytest.raises(ValueError, match=line):
        check_owners(dataclasses.replace(batch, bag_idx_BA=bags_BA), videos, videos)
