"""Parts of a batch: what the towers take of some of its clips and captions, and smaller batches.

Letters: B clips, N captions, A captions of a bag.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from trainer.batch import Batch, first_appearance
from trainer.gradient_cache import Range
from trainer.model import CaptionWords
from trainer.tiles import on_device

TowerInput = tuple[torch.Tensor, torch.Tensor, CaptionWords]


def tower_input(batch: Batch, part: Range | None, device: torch.device) -> TowerInput:
    """Features, mask and words of a range of clips and captions (None: all), on `device`."""
    features_BTF, mask_BT, words = batch.features_BTF, batch.mask_BT, batch.words
    if part is not None:
        features_BTF, mask_BT = features_BTF[part.clips], mask_BT[part.clips]
        words = some_captions(words, np.arange(part.captions.start, part.captions.stop))
    return (
        on_device(features_BTF, device),
        on_device(mask_BT, device),
        CaptionWords(*(on_device(value, device) for value in words)),
    )


def some_captions(words: CaptionWords, rows_N: np.ndarray) -> CaptionWords:
    """Some captions in the given order, with only the words that they hold."""
    words_U, places_X, offsets_N = (value.numpy() for value in words)
    starts_N = offsets_N[rows_N]
    counts_N = np.append(offsets_N[1:], len(places_X))[rows_N] - starts_N
    new_offsets_N = np.cumsum(counts_N) - counts_N
    chosen_X = np.repeat(starts_N - new_offsets_N, counts_N) + np.arange(counts_N.sum())
    used_U, new_places_X = np.unique(places_X[chosen_X], return_inverse=True)
    parts = (words_U[used_U], new_places_X.astype(np.int64), new_offsets_N)
    return CaptionWords(*(torch.from_numpy(part) for part in parts))


def batch_of_clips(batch: Batch, clips: slice) -> Batch:
    """The batch that holds only these clips and the captions of their bags."""
    captions_N, bag_idx_BA = first_appearance(batch.bag_idx_BA[clips].numpy())
    return replace(
        batch,
        clip_ids_B=batch.clip_ids_B[clips],
        caption_ids_N=batch.caption_ids_N[captions_N],
        features_BTF=batch.features_BTF[clips],
        mask_BT=batch.mask_BT[clips],
        words=some_captions(batch.words, captions_N),
        bag_idx_BA=torch.from_numpy(bag_idx_BA),
        clip_keys_B3=batch.clip_keys_B3[clips],
        caption_keys_N4=batch.caption_keys_N4[captions_N],
    )


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """`count` batches of nearly equal numbers of clips, also where there are fewer clips."""
    cuts = [len(batch.clip_ids_B) * number // count for number in range(count + 1)]
    return [batch_of_clips(batch, slice(cuts[i], cuts[i + 1])) for i in range(count)]
