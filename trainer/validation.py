"""Loss and retrieval on the validation split while training runs, each rank doing its share.

Texts of which the model sees the same are one target: it cannot tell them apart, and the rounding
of a matrix product must not.

Letters: B own clips, C clips of all ranks, N own captions, T distinct texts, D numbers of an
embedding, W ranks.
"""

from __future__ import annotations

import hashlib
import logging

import numpy as np
import torch

from pipeline.formats.bags import VAL
from trainer.bag_index import BagIndex
from trainer.batch import Batch, collate
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.metrics import retrieval_ranks, summarize_ranks
from trainer.model import TwoTowers
from trainer.preflight import global_exclusion
from trainer.towers import CaptionWords

MAX_CLIPS = 2048

logger = logging.getLogger(__name__)


class Validation:
    """A fixed set of validation clips, spread evenly over the split, shared out by videos."""

    def __init__(self, index: BagIndex, world: World, *, limit: int = MAX_CLIPS) -> None:
        self._world = world
        clips_C = thinned(index.clips_of_split(VAL), limit)
        self._empty = not len(clips_C)
        if not self._empty:
            video_C = index.clip_facts(clips_C).video_B
            start, stop = share(video_C, world.rank, world.size)
            self._batch: Batch = collate(index, clips_C[start:stop], step=-1, id_hash=0)
            for fault in self._batch.unreadable:
                logger.warning("a validation video is left out: %s", fault.reason)

    @torch.no_grad()
    def measure(self, model: TwoTowers) -> dict[str, float] | None:
        """Loss, R@K and ranks of each clip's nearest caption among all texts; None without clips.

        The same on all ranks; call on all of them.
        """
        batch, world = self._batch if not self._empty else None, self._world
        if batch is None:
            return None
        moved = batch.to(world.device)
        training = model.training
        model.eval()
        clips_BD, captions_ND, temperature = model(moved.features_BTF, moved.mask_BT, moved.words)
        model.train(training)
        own = [len(batch.clip_ids_B), len(batch.caption_ids_N), batch.num_valid]
        counts_W3 = world.gather_integers(own)
        if not counts_W3[:, 0].sum():
            return None
        settings = model.settings
        loss = mil_nce_loss(
            clips_BD, captions_ND, batch.bag_idx_BA, temperature=temperature,
            excluded_E2=global_exclusion(settings, batch, counts_W3, world),
            symmetric=settings.symmetric, positive_weight=settings.positive_weight,
            world=world, counts_W3=counts_W3,
        )  # fmt: skip
        counts = counts_W3[:, 0].tolist()
        ranks_C, num_texts = self._ranks(model, batch, clips_BD, captions_ND, counts)
        found = {"clips": len(ranks_C), "texts": num_texts, "val_loss": float(loss)}
        return found | summarize_ranks(ranks_C)

    def _ranks(
        self,
        model: TwoTowers,
        batch: Batch,
        clips_BD: torch.Tensor,
        captions_ND: torch.Tensor,
        counts: list[int],
    ) -> tuple[np.ndarray, int]:
        """Each clip's rank of its text among the distinct texts of all clips: [C], and T."""
        world, nearest_B = self._world, batch.bag_idx_BA[:, 0]
        own_texts = captions_ND[nearest_B.to(captions_ND.device)]
        texts_CD = world.gather_rows(own_texts, counts).cpu().numpy()
        own_seen = torch.from_numpy(digests_of_seen(model, batch.words)[nearest_B.numpy()])
        seen_C = world.gather_rows(own_seen, counts).numpy()
        _, first_T, target_C = np.unique(seen_C, return_index=True, return_inverse=True)
        begin = sum(counts[: world.rank])
        target_B = target_C[begin : begin + counts[world.rank]]
        ranks_B = np.zeros(0)
        if len(target_B):
            similarities_BT = clips_BD.cpu().numpy() @ texts_CD[first_T].T
            ranks_B = retrieval_ranks(similarities_BT, target_B)
        return world.gather_rows(torch.from_numpy(ranks_B), counts).numpy(), len(first_T)


def digests_of_seen(model: TwoTowers, words: CaptionWords) -> np.ndarray:
    """A number of 63 bits for what the model sees of each caption: [N] int64."""
    ids_X = words.words_U.numpy()[words.places_X.numpy()]
    seen = [model.sees(ids.tolist()) for ids in np.split(ids_X, words.offsets_N.numpy()[1:])]
    digests = [hashlib.blake2b(np.array(ids, "<i8").tobytes(), digest_size=8) for ids in seen]
    numbers = [int.from_bytes(digest.digest(), "little") >> 1 for digest in digests]
    return np.array(numbers[: len(words.offsets_N)], np.int64)


def thinned(clips_C: np.ndarray, limit: int) -> np.ndarray:
    """Up to `limit` of them, evenly spread."""
    if len(clips_C) <= limit:
        return clips_C
    return clips_C[np.linspace(0, len(clips_C) - 1, limit).astype(np.int64)]


def share(video_C: np.ndarray, rank: int, size: int) -> tuple[int, int]:
    """The first of a rank's clips and the one behind its last; a video's stay together."""
    wanted = [len(video_C) * number // size for number in (rank, rank + 1)]
    borders = np.flatnonzero(np.diff(video_C, prepend=-1, append=-1))
    start, stop = (int(borders[np.searchsorted(borders, cut)]) for cut in wanted)
    return start, stop
