"""Retrieval on the validation split while training runs.

Letters: B clips, N distinct captions.
"""

from __future__ import annotations

import torch

from trainer.bag_index import BagIndex
from trainer.data import validation_batch
from trainer.metrics import retrieval_ranks, summarize_ranks
from trainer.model import TwoTowers

MAX_CLIPS = 512


class Validation:
    """A fixed set of validation clips, each with its nearest caption as its text."""

    def __init__(self, index: BagIndex) -> None:
        self._index = index
        self._batch = None

    @torch.no_grad()
    def measure(self, model: TwoTowers, device: torch.device) -> dict[str, float] | None:
        """R@K and ranks of each clip's caption among the captions; None without clips."""
        if self._batch is None:
            self._batch = validation_batch(self._index, MAX_CLIPS)
        if self._batch is None:
            return None
        batch = self._batch.to(device)
        training = model.training
        model.eval()
        clips_BD, captions_ND, _ = model(batch.features_BTF, batch.mask_BT, batch.words)
        model.train(training)
        similarities_BN = (clips_BD @ captions_ND.T).cpu().numpy()
        ranks_B = retrieval_ranks(similarities_BN, batch.bag_idx_BA[:, 0].numpy())
        return {"clips": len(ranks_B), **summarize_ranks(ranks_B)}
