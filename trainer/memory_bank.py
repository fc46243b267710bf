"""Embeddings of earlier steps as further negatives: a queue of clips and one of captions.

Past captions are negatives of clips, past clips are negatives of captions; none is ever a positive,
and none gets a gradient (Wang et al. 2020, "Cross-Batch Memory"). Entries of a clip's own video are
never its negatives, nor captions that read like one of its bag where the settings say so; hence an
entry is an embedding, a video and text hashes. Ranks push their rows in rank order, so all hold the
same bank, whatever their number.

Letters: B own clips, N own captions, A captions of a bag, M entries, D numbers of an embedding, E
excluded pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from trainer.batch import Batch
from trainer.distributed import World
from trainer.loss_plan import Past
from trainer.negatives import matches
from trainer.settings import TrainSettings
from trainer.tiles import on_device

CLIPS, CAPTIONS = 0, 1


@dataclass(slots=True)
class Queue:
    """The last `size` rows that were pushed; the oldest is overwritten first."""

    size: int
    embedding_MD: torch.Tensor
    video_M: np.ndarray
    """[size] int64: the entry's video."""
    hash_MA: np.ndarray
    """[size, A] int64: text hashes of the entry, 0 = none."""
    next: int = 0
    """Where the next row goes."""
    filled: int = 0

    @classmethod
    def empty(cls, size: int, dim: int, hashes: int, device: torch.device, *, pinned: bool):
        """A queue of `size` rows without any yet."""
        rows = torch.zeros(size, dim, device="cpu" if pinned else device)
        if pinned and device.type == "cuda":
            rows = rows.pin_memory()
        return cls(size, rows, np.zeros(size, np.int64), np.zeros((size, hashes), np.int64))

    def push(self, rows_XD: torch.Tensor, video_X: np.ndarray, hash_XA: np.ndarray) -> None:
        """Append rows; of more rows than fit the last ones stay."""
        kept = slice(max(0, len(rows_XD) - self.size), None)
        rows_XD, video_X, hash_XA = rows_XD[kept], video_X[kept], hash_XA[kept]
        places = (self.next + np.arange(len(rows_XD))) % max(self.size, 1)
        on_bank = on_device(places, self.embedding_MD.device)
        self.embedding_MD[on_bank] = rows_XD.to(self.embedding_MD)
        self.video_M[places], self.hash_MA[places] = video_X, hash_XA
        self.next = int((self.next + len(rows_XD)) % max(self.size, 1))
        self.filled = min(self.size, self.filled + len(rows_XD))

    def state(self) -> dict:
        """For a checkpoint."""
        return {
            "embedding": self.embedding_MD.cpu(),
            "video": torch.from_numpy(self.video_M),
            "hash": torch.from_numpy(self.hash_MA),
            "next": self.next,
            "filled": self.filled,
        }

    def restore(self, state: dict) -> None:
        """From `state`'s values."""
        self.embedding_MD.copy_(state["embedding"])
        self.video_M[:], self.hash_MA[:] = state["video"].numpy(), state["hash"].numpy()
        self.next, self.filled = state["next"], state["filled"]


@dataclass(slots=True)
class MemoryBank:
    """A queue of clips and one of captions, and how a step draws from them."""

    settings: TrainSettings
    world: World
    clips: Queue
    captions: Queue
    _no_rows: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._no_rows = self.clips.embedding_MD[:0].to(self.world.device)

    @classmethod
    def of(cls, settings: TrainSettings, world: World, bag_size: int, *, on_cpu: bool):
        """An empty bank as the settings say, or None where they want none."""
        if not settings.bank_clips and not settings.bank_captions:
            return None
        dim, device = settings.embedding_dim, world.device
        clips = Queue.empty(settings.bank_clips, dim, bag_size, device, pinned=on_cpu)
        captions = Queue.empty(settings.bank_captions, dim, 1, device, pinned=on_cpu)
        return cls(settings, world, clips, captions)

    def past(
        self, step: int, batch: Batch, clips_BD: torch.Tensor, captions_ND: torch.Tensor
    ) -> Past | None:
        """What this step's loss takes from the bank; None while it warms up or is empty."""
        if step < self.settings.bank_warmup_steps:
            return None
        if not self.clips.filled and not self.captions.filled:
            return None
        clip_keys_B, caption_keys_N = batch.clip_keys_B3[:, 0], batch.caption_keys_N4
        of_captions, of_clips = self._hardness(clips_BD, captions_ND)
        chosen = self._chosen(CAPTIONS, self.captions, step, of_captions)
        past_captions = self._rows(self.captions, chosen)
        excluded_captions_E2 = _excluded(
            (clip_keys_B.numpy(), _bag_hashes(batch)),
            (self.captions.video_M[chosen], self.captions.hash_MA[chosen]),
            same_text=self.settings.exclude_same_text,
        )
        chosen = self._chosen(CLIPS, self.clips, step, of_clips)
        excluded_clips_E2 = _excluded(
            (caption_keys_N[:, 0].numpy(), caption_keys_N[:, 3:].numpy()),
            (self.clips.video_M[chosen], self.clips.hash_MA[chosen]),
            same_text=self.settings.exclude_same_text,
        )
        return Past(
            past_captions, excluded_captions_E2, self._rows(self.clips, chosen), excluded_clips_E2
        )

    def push(
        self,
        batch: Batch,
        clips_BD: torch.Tensor,
        captions_ND: torch.Tensor,
        counts_W3: np.ndarray,
    ) -> None:
        """Append the embeddings of all ranks' clips and captions, in rank order."""
        gather, counts = self.world.gather_rows, counts_W3.tolist()
        for queue, rows_XD, video_X, hash_XA, column in (
            (self.clips, clips_BD, batch.clip_keys_B3[:, 0], _bag_hashes(batch), 0),
            (
                self.captions, captions_ND, batch.caption_keys_N4[:, 0],
                batch.caption_keys_N4[:, 3:].numpy(), 1,
            ),
        ):  # fmt: skip
            if not queue.size:
                continue
            of_ranks = [count[column] for count in counts]
            keys = np.concatenate([video_X.numpy()[:, None], hash_XA], axis=1)
            keys = gather(torch.from_numpy(keys), of_ranks).numpy()
            queue.push(gather(rows_XD, of_ranks), keys[:, 0], keys[:, 1:])

    def _chosen(self, kind: int, queue: Queue, step: int, hardness_M: np.ndarray) -> np.ndarray:
        """The entries that a step uses, the same on all ranks: [up to K] int64, ascending."""
        every, wanted = np.arange(queue.filled), self.settings.bank_drawn
        if self.settings.bank_draw == "all" or len(every) <= wanted:
            return every
        if self.settings.bank_draw == "random":
            random = np.random.default_rng((self.settings.seed, step, kind, 0xBA9C))
            return np.sort(random.choice(len(every), wanted, replace=False))
        return np.sort(np.argsort(-hardness_M, kind="stable")[:wanted])

    def _hardness(self, clips_BD: torch.Tensor, captions_ND: torch.Tensor) -> list[np.ndarray]:
        """Each past caption's and clip's largest similarity to a row of any rank: [filled] each.

        Both in one exchange and one wait for a GPU; empty where nobody asks.
        """
        sides = ((self.captions, clips_BD), (self.clips, captions_ND))
        full = any(queue.filled > self.settings.bank_drawn for queue, _ in sides)
        if self.settings.bank_draw != "hardest" or not full:
            return [np.zeros(0), np.zeros(0)]
        best = torch.cat([_nearest(queue, rows.detach()) for queue, rows in sides])
        return np.split(self.world.largest(best).cpu().numpy(), [self.captions.filled])

    def _rows(self, queue: Queue, chosen: np.ndarray) -> torch.Tensor:
        if not len(chosen):
            return self._no_rows
        places = on_device(chosen, queue.embedding_MD.device)
        # index_select copies, so a later push does not change what a backward pass still needs.
        # Into pinned memory, for a copy from any other waits for the GPU; torch does not give that
        # memory away again before the copy has ended.
        rows = queue.embedding_MD
        chosen_KD = rows.new_empty(len(places), rows.shape[1], pin_memory=rows.is_pinned())
        torch.index_select(rows, 0, places, out=chosen_KD)
        return chosen_KD.to(self.world.device, non_blocking=True)

    def state(self) -> dict:
        """For a checkpoint."""
        return {"clips": self.clips.state(), "captions": self.captions.state()}

    def restore(self, state: dict) -> None:
        """From `state`'s values."""
        self.clips.restore(state["clips"])
        self.captions.restore(state["captions"])


def _nearest(queue: Queue, rows_XD: torch.Tensor) -> torch.Tensor:
    """Each entry's largest similarity to a row: [filled]."""
    best_M = rows_XD.new_full((queue.filled,), -torch.inf)
    if len(rows_XD):
        for start in range(0, queue.filled, 4096):
            part = slice(start, min(start + 4096, queue.filled))
            entries = queue.embedding_MD[part].to(rows_XD, non_blocking=True)
            best_M[part] = (entries @ rows_XD.T).amax(dim=1)
    return best_M


def _bag_hashes(batch: Batch) -> np.ndarray:
    """Text hashes of each clip's bag: [B, A] int64, 0 = padding."""
    bag_idx_BA = batch.bag_idx_BA.numpy()
    filled_BA = bag_idx_BA >= 0
    if not filled_BA.any():
        return np.zeros(bag_idx_BA.shape, np.int64)
    hash_N = batch.caption_keys_N4[:, 3].numpy()
    return np.where(filled_BA, hash_N[np.where(filled_BA, bag_idx_BA, 0)], 0)


def _excluded(own: tuple, past: tuple, *, same_text: bool) -> np.ndarray:
    """(own row, past row) pairs of the same video or, if asked, with a text in common: [E, 2]."""
    (video_X, hash_XA), (video_M, hash_MA) = own, past
    num_past = max(len(video_M), 1)
    row_E, past_E = matches(video_X, video_M)
    codes = [row_E * num_past + past_E]
    if same_text:
        (row_P, slot_P), (entry_Q, place_Q) = np.nonzero(hash_XA), np.nonzero(hash_MA)
        pair_E, found_E = matches(hash_XA[row_P, slot_P], hash_MA[entry_Q, place_Q])
        codes.append(row_P[pair_E] * num_past + entry_Q[found_E])
    return np.stack(np.divmod(np.unique(np.concatenate(codes)), num_past), axis=1)
