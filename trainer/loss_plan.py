"""What is known about a global batch before any embedding is, and the checks of the loss's input.

Letters: B own clips, N own captions, A captions of a bag, E excluded pairs, P positive pairs, M
entries of a memory bank, D numbers of an embedding, W ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from pipeline.formats.bags import holds_twice
from trainer.distributed import World
from trainer.tiles import Block, make_block, on_device

NO_PAIRS = np.zeros((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class Past:
    """Embeddings of earlier steps that serve as further negatives, the same on all ranks."""

    captions_MD: torch.Tensor
    """Negatives of the clips."""
    excluded_captions_E2: np.ndarray
    """(own clip, past caption) pairs that are no negatives."""
    clips_MD: torch.Tensor
    """Negatives of the captions in bags."""
    excluded_clips_E2: np.ndarray
    """(own caption, past clip) pairs that are no negatives."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A global batch's counts, pairs and tiles, seen from one rank."""

    world: World
    clip_counts: list[int]
    caption_counts: list[int]
    num_valid: int
    filled_BA: torch.Tensor
    """[B, A] bool on the device: where a bag holds a caption."""
    clip_P: torch.Tensor
    """The own clip of each positive pair, in the order of the bags."""
    caption_P: torch.Tensor
    """The own caption of each positive pair."""
    clips: Block
    """Rows: own clips; columns: all captions."""
    captions: Block | None
    """Rows: own captions; columns: all clips. None for one process, where `clips` has it all."""
    past_captions: Block | None
    """Rows: own clips; columns: past captions."""
    past_clips: Block | None
    """Rows: own captions; columns: past clips."""
    symmetric: bool
    positive_weight: float
    reduction: str


def make_plan(
    bag_idx_BA: np.ndarray,
    num_captions: int,
    excluded_E2: np.ndarray | None,
    counts_W3: np.ndarray | None,
    past: Past | None,
    world: World,
    *,
    device: torch.device,
    tile: int,
    symmetric: bool,
    positive_weight: float,
    reduction: str,
) -> Plan:
    """Count, sort the pairs into tiles and move them to `device`.

    Raises:
        ValueError: an excluded pair lies outside the global batch.
    """
    filled_BA = bag_idx_BA >= 0
    if counts_W3 is None:
        own = [len(bag_idx_BA), num_captions, int(filled_BA.any(axis=1).sum())]
        counts_W3 = world.gather_integers(own)
    first_clip, first_caption, _ = counts_W3[: world.rank].sum(axis=0).tolist()
    all_clips, all_captions, num_valid = counts_W3.sum(axis=0).tolist()
    i_P, slot_P = np.nonzero(filled_BA)
    k_P = bag_idx_BA[i_P, slot_P].astype(np.int64)
    i_E, k_E = _checked_exclusion(excluded_E2, all_clips, all_captions).T
    cut = partial(make_block, tile=tile, device=device)
    own_clips = (i_E >= first_clip) & (i_E < first_clip + len(bag_idx_BA))
    clips = cut(
        (len(bag_idx_BA), all_captions),
        (i_P, k_P + first_caption),
        (i_E[own_clips] - first_clip, k_E[own_clips]),
    )
    captions = None
    if world.size > 1:
        own_captions = (k_E >= first_caption) & (k_E < first_caption + num_captions)
        captions = cut(
            (num_captions, all_clips),
            (k_P, i_P + first_clip),
            (k_E[own_captions] - first_caption, i_E[own_captions]),
        )
    past_captions, past_clips = _past_blocks(past, len(bag_idx_BA), num_captions, cut)
    return Plan(
        world=world,
        clip_counts=counts_W3[:, 0].tolist(),
        caption_counts=counts_W3[:, 1].tolist(),
        num_valid=num_valid,
        filled_BA=on_device(filled_BA, device),
        clip_P=on_device(i_P, device),
        caption_P=on_device(k_P, device),
        clips=clips,
        captions=captions,
        past_captions=past_captions,
        past_clips=past_clips if symmetric else None,
        symmetric=symmetric,
        positive_weight=positive_weight,
        reduction=reduction,
    )


def _past_blocks(
    past: Past | None, num_clips: int, num_captions: int, cut: Callable[..., Block]
) -> tuple[Block | None, Block | None]:
    """The blocks of own clips × past captions and own captions × past clips, None where empty."""
    if past is None:
        return None, None

    def block(rows: int, past_MD: torch.Tensor, excluded_E2: np.ndarray) -> Block | None:
        if not len(past_MD):
            return None
        return cut((rows, len(past_MD)), tuple(NO_PAIRS.T), tuple(excluded_E2.T))

    return (
        block(num_clips, past.captions_MD, past.excluded_captions_E2),
        block(num_captions, past.clips_MD, past.excluded_clips_E2),
    )


def _checked_exclusion(
    pairs_E2: np.ndarray | None, num_clips: int, num_captions: int
) -> np.ndarray:
    if pairs_E2 is None:
        return NO_PAIRS
    pairs_E2 = np.asarray(pairs_E2, np.int64)
    if pairs_E2.ndim != 2 or pairs_E2.shape[1] != 2:
        raise ValueError(f"excluded pairs have shape {pairs_E2.shape}, expected [E, 2]")
    if pairs_E2.size and (pairs_E2.min() < 0 or (pairs_E2 >= (num_clips, num_captions)).any()):
        sizes = f"{num_clips} clips × {num_captions} captions"
        raise ValueError(f"an excluded pair lies outside {sizes}")
    return pairs_E2


def check_input(clips_BD, captions_ND, bag_idx_BA: np.ndarray, temperature) -> None:
    """Shapes, the range of the bags' indices and the temperature; `ValueError` names what is off.

    All on the CPU, before any index reaches a gather on a GPU.
    """
    if clips_BD.ndim != 2 or captions_ND.ndim != 2 or clips_BD.shape[1] != captions_ND.shape[1]:
        raise ValueError(
            f"clips {tuple(clips_BD.shape)} and captions {tuple(captions_ND.shape)} do not fit:"
            " expected [B, D] and [N, D]"
        )
    if bag_idx_BA.ndim != 2 or len(bag_idx_BA) != len(clips_BD):
        raise ValueError(
            f"bag_idx {bag_idx_BA.shape} does not fit clips {tuple(clips_BD.shape)}:"
            " expected [B, A]"
        )
    if bag_idx_BA.size and (bag_idx_BA.min() < -1 or bag_idx_BA.max() >= len(captions_ND)):
        raise ValueError(
            f"bag_idx spans [{bag_idx_BA.min()}, {bag_idx_BA.max()}], allowed:"
            f" [-1, {len(captions_ND) - 1}]"
        )
    if holds_twice(bag_idx_BA).any():
        raise ValueError("bag_idx names a caption twice in one bag")
    # A tensor's value is looked at only where that costs no synchronisation with a GPU.
    value = temperature.detach() if isinstance(temperature, torch.Tensor) else temperature
    if not (isinstance(value, torch.Tensor) and value.is_cuda) and not float(value) > 0:
        fault = ValueError if math.isfinite(value) else NotFinite
        raise fault(f"temperature is {float(value)}, must be above 0")


class NotFinite(ValueError):
    """Numbers of a step that are NaN or infinite, as all ranks see them alike."""


def check_finite(all_XD: torch.Tensor, kind: str, counts: list[int]) -> None:
    """Name the first embedding that is not finite; after the gather all ranks see the same one.

    Raises:
        NotFinite: there is one.
    """
    bad_X = ~all_XD.isfinite().all(dim=1)
    if bad_X.any():
        row = int(bad_X.nonzero()[0])
        rank = int(np.searchsorted(np.cumsum(counts), row, side="right"))
        raise NotFinite(
            f"{int(bad_X.sum())} of {len(all_XD)} {kind} embeddings are NaN or infinite, the first"
            f" in row {row - sum(counts[:rank])} of rank {rank}"
        )
