"""Validation counts each clip once on any number of ranks, and takes equal texts as one target."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from pipeline.formats.bags import VAL, read_bags
from tests.ranks import run_ranks
from tests.synthetic_bags import NUM_WORDS, Results, files_of, make_results, rewrite, train_settings
from trainer.bag_index import open_index
from trainer.distributed import World
from trainer.model import build_model
from trainer.validation import Validation, share, thinned

SHARDS = (11, 9, 7)


def measured(world: World, results: Results) -> dict:
    index = open_index(files_of(results))
    model = build_model(
        train_settings(), feature_dim=index.feature_dim, num_words=NUM_WORDS, max_caption_words=5
    )
    validation = Validation(index, world)
    return {
        **validation.measure(model),
        "own": validation._batch.clip_ids_B.tolist(),
        "training": model.training,
    }


def slow_ranks(results: Results) -> list[float]:
    """Each validation clip's rank of its nearest caption's text, one clip at a time."""
    index = open_index(files_of(results))
    model = build_model(
        train_settings(), feature_dim=index.feature_dim, num_words=NUM_WORDS, max_caption_words=5
    )
    clips, texts, words = [], [], []
    for number in index.clips_of_split(VAL).tolist():
        batch = Validation(index, World.alone())._batch
        row = batch.clip_ids_B.tolist().index(number)
        clips.append(model.embed_clips(batch.features_BTF[[row]], batch.mask_BT[[row]])[0])
        shard = index.clip_facts(np.array([number])).shard_B[0]
        bags = index.bags[shard]
        caption = bags.bag_idx[number - int(index._clips[shard]), 0]
        texts.append(model.embed_captions(torch.from_numpy(bags.cap_ids[[caption]].copy()))[0])
        words.append(frozenset(bags.cap_ids[caption].tolist()) - {0})
    distinct = dict(zip(words, texts, strict=True))
    found = []
    for clip, own in zip(clips, words, strict=True):
        score = float(clip @ distinct[own])
        others = [float(clip @ text) for name, text in distinct.items() if name != own]
        found.append(1 + sum(other > score for other in others))
    return found


@pytest.mark.timeout(120)
def test_ranks_share_the_clips_and_find_what_one_process_finds(tmp_path):
    results = make_results(tmp_path / "results", videos_of_shards=SHARDS)
    alone = measured(World.alone(), results)
    assert alone["training"]
    slow = slow_ranks(results)
    assert alone["clips"] == len(slow)
    assert alone["mean_rank"] == pytest.approx(np.mean(slow))
    assert alone["R@5"] == pytest.approx(np.mean(np.array(slow) <= 5), abs=0.1)
    found = run_ranks(measured, 3, results, tmp_path)
    assert [clip for result in found for clip in result["own"]] == alone["own"]
    for result in found:
        for name in ("clips", "texts", "R@1", "R@5", "R@10", "median_rank", "mean_rank"):
            assert result[name] == pytest.approx(alone[name])
        assert result["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-5)


@pytest.mark.parametrize("reversed_too", [False, True])
def test_equal_texts_are_one_target_in_any_order_of_their_words(tmp_path, reversed_too):
    results = make_results(tmp_path, videos_of_shards=(11,))
    path = tmp_path / "bags/00000.npz"
    bags = read_bags(path)
    same = np.tile(bags.cap_ids[:1], (len(bags.cap_ids), 1))
    length = bags.cap_lens[0]
    hashes = np.zeros_like(bags.cap_hash)
    if reversed_too:
        same[::2, :length] = same[::2, :length][:, ::-1]
        hashes[::2] = 1
    rewrite(path, cap_ids=same, cap_lens=np.full_like(bags.cap_lens, length), cap_hash=hashes)
    found = measured(World.alone(), results)
    assert (found["texts"], found["R@1"], found["mean_rank"]) == (1, 1.0, 1.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_shares_keep_videos_whole_and_cover_all(size):
    videos = np.repeat([3, 4, 9, 10, 40], [1, 5, 2, 1, 3])
    cuts = [share(videos, rank, size) for rank in range(size)]
    assert cuts[0][0] == 0
    assert cuts[-1][1] == len(videos)
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    owned = [set(videos[start:stop].tolist()) for start, stop in cuts]
    assert sum(map(len, owned)) == 5


def test_a_large_split_is_thinned_evenly():
    assert thinned(np.arange(5), 9).tolist() == [0, 1, 2, 3, 4]
    assert thinned(np.arange(101), 5).tolist() == [0, 25, 50, 75, 100]
