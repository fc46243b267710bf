"""Parts of a batch against lists: the same words, bags and features, clip by clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.synthetic_bags import make_results, step_data
from trainer.batch import Batch
from trainer.batch_parts import batch_of_clips, micro_batches, some_captions, tower_input
from trainer.gradient_cache import Range
from trainer.towers import CaptionWords, caption_words

CAPTIONS = [[3, 1, 3], [], [7], [1, 9, 7, 2], [9]]


def padded(captions: list[list[int]]) -> np.ndarray:
    """Token ids [N, L], 0 = padding."""
    ids_NL = np.zeros((len(captions), max(map(len, captions), default=0)), np.int64)
    for row, ids in enumerate(captions):
        ids_NL[row, : len(ids)] = ids
    return ids_NL


def listed(words: CaptionWords) -> list[list[int]]:
    """Token ids of each caption."""
    found_U, places_X, offsets_N = (value.tolist() for value in words)
    ends = [*offsets_N[1:], len(places_X)][: len(offsets_N)]
    return [
        [found_U[place] for place in places_X[start:end]]
        for start, end in zip(offsets_N, ends, strict=True)
    ]


@pytest.fixture(scope="module")
def batch(tmp_path_factory) -> Batch:
    return step_data(make_results(tmp_path_factory.mktemp("results")))[0]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [3], [4, 0], [1], [2, 2], []])
def test_some_captions_hold_their_words_and_no_others(rows):
    found = some_captions(caption_words(padded(CAPTIONS)), np.array(rows, np.int64))
    assert listed(found) == [CAPTIONS[row] for row in rows]
    assert found.words_U.tolist() == sorted({word for row in rows for word in CAPTIONS[row]})


def bags_of(batch: Batch) -> list[list[tuple[int, list[int]]]]:
    """For each clip the captions of its bag: number over all files, and words."""
    words, numbers = listed(batch.words), batch.caption_ids_N.tolist()
    return [
        [(numbers[place], words[place]) for place in bag if place >= 0]
        for bag in batch.bag_idx_BA.tolist()
    ]


@pytest.mark.parametrize("count", [1, 2, 5, 12, 20])
def test_micro_batches_together_are_the_batch(batch, count):
    parts = micro_batches(batch, count)
    sizes = [len(part.clip_ids_B) for part in parts]
    assert len(parts) == count
    assert max(sizes) - min(sizes) <= 1
    for name in ("clip_ids_B", "features_BTF", "mask_BT", "clip_keys_B3"):
        whole = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(whole, getattr(batch, name)), name
    assert [bag for part in parts for bag in bags_of(part)] == bags_of(batch)
    keys = dict(zip(batch.caption_ids_N.tolist(), batch.caption_keys_N4.tolist(), strict=True))
    for part in parts:
        own = dict(zip(part.caption_ids_N.tolist(), part.caption_keys_N4.tolist(), strict=True))
        assert own.items() <= keys.items()
        assert set(own) == {number for bag in bags_of(part) for number, _ in bag}


def test_what_the_towers_take_is_a_range_of_clips_and_captions(batch):
    device = torch.device("cpu")
    features, mask, words = tower_input(batch, Range(slice(2, 5), slice(1, 4)), device)
    assert torch.equal(features, batch.features_BTF[2:5])
    assert torch.equal(mask, batch.mask_BT[2:5])
    assert listed(words) == listed(batch.words)[1:4]
    assert listed(tower_input(batch, None, device)[2]) == listed(batch.words)
    assert bags_of(batch_of_clips(batch, slice(0, 2))) == bags_of(batch)[:2]
