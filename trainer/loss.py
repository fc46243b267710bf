"""MIL-NCE (Miech et al. 2020, Eq. 1) over all ranks, exact, without the clips × captions matrix.

With similarities s = ⟨v, t⟩/τ, m(i, k) = 1 where caption k is a negative of clip i, and
P_i = Σ_{k∈bag(i)} e^{s_ik},  R_i = Σ_k m(i,k) e^{s_ik},  C_i = Σ_{k∈bag(i)} Σ_j m(j,k) e^{s_jk}:

    A_i = log(c·P_i + R_i [+ C_i if symmetric])     L = mean over non-empty bags of (A_i − log P_i)

    w_i = e^{−A_i} (0 if bag(i) = ∅),  u_k = Σ_{i: k∈bag(i)} w_i (0 unless symmetric):
    N_valid · ∂L/∂s_ik = e^{s_ik} [ m(i,k)(w_i + u_k) + 1_{k∈bag(i)}(c·w_i − 1/P_i) ]

Each rank does the rows of its own clips against all captions and the rows of its own captions
against all clips, in tiles that the backward pass computes again. It returns W × its own share of
the gradient, so that the mean that DDP takes is the gradient of one process, for every parameter,
the temperature included.

Letters: B own clips, N own captions, D numbers of an embedding, A captions of a bag, E excluded
pairs, P positive pairs, X any rows, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trainer.distributed import World
from trainer.tiles import Block, Pairs, gradients, log_sums

TILE_ELEMENTS = 2**21
"""Numbers of one tile of similarities; its copies are all the memory that grows with nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known about a global batch before any embedding is."""

    world: World
    clip_counts: list[int]
    caption_counts: list[int]
    num_valid: int
    bag_BA: torch.Tensor
    """[B, A] int64 on the device: own captions, 0 where padded."""
    filled_BA: torch.Tensor
    clips: Block
    """Rows: own clips; columns: all captions."""
    captions: Block
    """Rows: own captions; columns: all clips."""
    caption_P: torch.Tensor
    """The own caption of each positive pair."""
    caption_order_P: torch.Tensor
    """The order that sorts the positives of `clips` like those of `captions`."""
    symmetric: bool
    positive_weight: float
    tile: int


def mil_nce_loss(
    clips_BD: torch.Tensor,
    captions_ND: torch.Tensor,
    bag_idx_BA: torch.Tensor,
    *,
    temperature: float | torch.Tensor,
    excluded_E2: np.ndarray | None = None,
    symmetric: bool = True,
    positive_weight: float = 1,
    normalize: bool = False,
    world: World | None = None,
    counts_W3: np.ndarray | None = None,
    tile: int = TILE_ELEMENTS,
) -> torch.Tensor:
    """The loss of the global batch, equal on all ranks; its gradient is W × this rank's share.

    Args:
        clips_BD: embeddings of this rank's clips.
        captions_ND: embeddings of this rank's captions; every bag's captions are on its rank.
        bag_idx_BA: rows of `captions_ND`, -1 = padding, no repeats in a row. Kept on the CPU, it
            costs no synchronisation.
        temperature: divides the similarities; a tensor gets its gradient.
        excluded_E2: (clip, caption) pairs in *global* rows, the same on all ranks, that are neither
            positives nor negatives (`trainer.negatives.excluded_pairs`).
        symmetric: count the negatives of a bag's captions too (C above).
        positive_weight: c above; 1 is the paper, 2 the reference code.
        normalize: compare by cosine.
        world: the ranks; None for one process.
        counts_W3: each rank's clips, captions and non-empty bags, if already exchanged.
        tile: numbers of one tile of similarities.

    Raises:
        ValueError: shapes that do not fit, an index out of range or repeated, a temperature that is
            not positive, or (on the CPU) embeddings that are not finite.
    """
    world = world or World.alone(clips_BD.device.type)
    bag_idx_BA = bag_idx_BA.detach().cpu().numpy()
    _check(clips_BD, captions_ND, bag_idx_BA, temperature)
    plan = _plan(
        bag_idx_BA, len(captions_ND), excluded_E2, counts_W3, world,
        device=clips_BD.device, symmetric=symmetric, positive_weight=positive_weight, tile=tile,
    )  # fmt: skip
    with torch.autocast(clips_BD.device.type, enabled=False):
        dtype = torch.promote_types(
            torch.float32, torch.promote_types(clips_BD.dtype, captions_ND.dtype)
        )
        clips_BD, captions_ND = clips_BD.to(dtype), captions_ND.to(dtype)
        if normalize:
            clips_BD = functional.normalize(clips_BD, dim=1)
            captions_ND = functional.normalize(captions_ND, dim=1)
        scale = 1 / torch.as_tensor(temperature, dtype=dtype, device=clips_BD.device)
        return _MilNce.apply(clips_BD, captions_ND, scale, plan)


class _MilNce(torch.autograd.Function):
    """The formulas at the top of this file."""

    @staticmethod
    def forward(ctx, clips_BD, captions_ND, scale, plan: Plan) -> torch.Tensor:
        world = plan.world
        all_clips = world.gather_rows(clips_BD, plan.clip_counts)
        all_captions = world.gather_rows(captions_ND, plan.caption_counts)
        _check_finite(all_clips, "clip", plan.clip_counts)
        _check_finite(all_captions, "caption", plan.caption_counts)
        both = plan.symmetric and world.size == 1
        rows_B, columns_N, s_P = log_sums(
            clips_BD, all_captions, scale, plan.clips, plan.tile, with_columns=both
        )
        if plan.symmetric and not both:
            columns_N, _, _ = log_sums(captions_ND, all_clips, scale, plan.captions, plan.tile)

        log_p_B = _of_bags(s_P, plan).logsumexp(dim=1)
        terms = [log_p_B + np.log(plan.positive_weight), rows_B]
        if plan.symmetric:
            c_BA = columns_N[plan.bag_BA].masked_fill(~plan.filled_BA, -torch.inf)
            terms.append(c_BA.logsumexp(dim=1))
        empty_B = ~plan.filled_BA.any(dim=1)
        a_B = torch.stack(terms).logsumexp(dim=0).masked_fill(empty_B, torch.inf)

        own = (a_B - log_p_B).masked_fill(empty_B, 0).sum()
        ctx.plan = plan
        ctx.save_for_backward(
            clips_BD, captions_ND, scale, all_clips, all_captions, a_B, log_p_B, s_P
        )
        return world.sum(own) / max(plan.num_valid, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        plan, world = ctx.plan, ctx.plan.world
        clips_BD, captions_ND, scale, all_clips, all_captions, a_B, log_p_B, s_P = ctx.saved_tensors
        log_w_B = -a_B
        log_u_N = None
        if plan.symmetric:
            log_u_N = _log_scatter(log_w_B, plan, len(captions_ND))
        i_P = plan.clips.positives.rows
        g_P = plan.positive_weight * (s_P - a_B[i_P]).exp() - (s_P - log_p_B[i_P]).exp()

        if world.size == 1:
            d_clips_BD, d_captions_ND = gradients(
                clips_BD, captions_ND, scale, plan.clips, plan.tile, log_w_B, log_u_N, g_P,
                with_columns=True,
            )  # fmt: skip
        else:
            all_log_w = world.gather_rows(log_w_B, plan.clip_counts)
            all_log_u = None
            if plan.symmetric:
                all_log_u = world.gather_rows(log_u_N, plan.caption_counts)
            d_clips_BD, _ = gradients(
                clips_BD, all_captions, scale, plan.clips, plan.tile, log_w_B, all_log_u, g_P
            )
            d_captions_ND, _ = gradients(
                captions_ND, all_clips, scale, plan.captions, plan.tile, log_u_N, all_log_w,
                g_P[plan.caption_order_P],
            )  # fmt: skip
        factor = grad_output * world.size / max(plan.num_valid, 1)
        d_scale = (clips_BD * d_clips_BD).sum() * factor
        return d_clips_BD * (scale * factor), d_captions_ND * (scale * factor), d_scale, None


def _of_bags(values_P: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Values of the positive pairs as [B, A], -inf where padded."""
    values_BA = values_P.new_full(plan.filled_BA.shape, -torch.inf)
    return values_BA.masked_scatter(plan.filled_BA, values_P)


def _log_scatter(values_B: torch.Tensor, plan: Plan, num_captions: int) -> torch.Tensor:
    """For each own caption, log Σ e^value over the clips whose bag holds it: [N]."""
    positives = plan.clips.positives
    values_P = values_B[positives.rows]
    k_P = plan.caption_P
    peak_N = values_B.new_full((num_captions,), -torch.inf).scatter_reduce(
        0, k_P, values_P, reduce="amax"
    )
    sum_N = values_B.new_zeros(num_captions).index_add(0, k_P, (values_P - peak_N[k_P]).exp())
    return peak_N + sum_N.log()


def _plan(
    bag_idx_BA: np.ndarray,
    num_captions: int,
    excluded_E2: np.ndarray | None,
    counts_W3: np.ndarray | None,
    world: World,
    *,
    device: torch.device,
    symmetric: bool,
    positive_weight: float,
    tile: int,
) -> Plan:
    filled_BA = bag_idx_BA >= 0
    if counts_W3 is None:
        own = [len(bag_idx_BA), num_captions, int(filled_BA.any(axis=1).sum())]
        counts_W3 = world.gather_integers(own)
    first_clip, first_caption, _ = counts_W3[: world.rank].sum(axis=0).tolist()
    i_P, slot_P = np.nonzero(filled_BA)
    k_P = bag_idx_BA[i_P, slot_P].astype(np.int64)
    excluded_E2 = _checked_exclusion(excluded_E2, counts_W3)
    i_E, k_E = excluded_E2[:, 0] - first_clip, excluded_E2[:, 1] - first_caption
    mine = (i_E >= 0) & (i_E < len(bag_idx_BA))
    clips = _block(i_P, k_P + first_caption, i_E[mine], excluded_E2[mine, 1], device)
    mine = (k_E >= 0) & (k_E < num_captions)
    captions = _block(k_P, i_P + first_clip, k_E[mine], excluded_E2[mine, 0], device)
    return Plan(
        world=world,
        clip_counts=counts_W3[:, 0].tolist(),
        caption_counts=counts_W3[:, 1].tolist(),
        num_valid=int(counts_W3[:, 2].sum()),
        bag_BA=torch.from_numpy(np.where(filled_BA, bag_idx_BA, 0).astype(np.int64)).to(device),
        filled_BA=torch.from_numpy(filled_BA).to(device),
        clips=clips,
        captions=captions,
        caption_P=torch.from_numpy(k_P).to(device),
        caption_order_P=torch.from_numpy(np.argsort(k_P, kind="stable")).to(device),
        symmetric=symmetric,
        positive_weight=positive_weight,
        tile=tile,
    )


def _block(rows_P, columns_P, rows_E, columns_E, device: torch.device) -> Block:
    return Block(
        positives=Pairs.sorted_from(rows_P, columns_P, device),
        blocked=Pairs.sorted_from(
            np.concatenate([rows_P, rows_E]), np.concatenate([columns_P, columns_E]), device
        ),
    )


def _checked_exclusion(excluded_E2: np.ndarray | None, counts_W3: np.ndarray) -> np.ndarray:
    if excluded_E2 is None:
        return np.zeros((0, 2), np.int64)
    excluded_E2 = np.asarray(excluded_E2, np.int64)
    if excluded_E2.ndim != 2 or excluded_E2.shape[1] != 2:
        raise ValueError(f"excluded pairs have shape {excluded_E2.shape}, expected [E, 2]")
    sizes = counts_W3[:, :2].sum(axis=0)
    if excluded_E2.size and (excluded_E2.min() < 0 or (excluded_E2 >= sizes).any()):
        raise ValueError(f"an excluded pair lies outside {sizes[0]} clips × {sizes[1]} captions")
    return excluded_E2


def _check(clips_BD, captions_ND, bag_idx_BA: np.ndarray, temperature) -> None:
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
    ordered_BA = np.sort(bag_idx_BA, axis=1)
    if ((np.diff(ordered_BA, axis=1) == 0) & (ordered_BA[:, 1:] >= 0)).any():
        raise ValueError("bag_idx names a caption twice in one bag")
    # A tensor's value is looked at only where that costs no synchronisation with a GPU.
    value = temperature.detach() if isinstance(temperature, torch.Tensor) else temperature
    if not (isinstance(value, torch.Tensor) and value.is_cuda) and not float(value) > 0:
        raise ValueError(f"temperature is {float(value)}, must be above 0")


def _check_finite(all_XD: torch.Tensor, kind: str, counts: list[int]) -> None:
    """Name the first embedding that is not finite; after the gather all ranks see the same one."""
    if all_XD.is_cuda:  # would wait for the GPU; the gradient's norm tells, a step later
        return
    bad_X = ~all_XD.isfinite().all(dim=1)
    if bad_X.any():
        row = int(bad_X.nonzero()[0])
        rank = int(np.searchsorted(np.cumsum(counts), row, side="right"))
        raise ValueError(
            f"{int(bad_X.sum())} of {len(all_XD)} {kind} embeddings are NaN or infinite, the first"
            f" in row {row - sum(counts[:rank])} of rank {rank}"
        )
