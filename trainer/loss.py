"""MIL-NCE (Miech et al. 2020, Eq. 1) over all ranks, exact, without the clips × captions matrix.

With similarities s = ⟨v, t⟩/τ, m(i, k) = 1 where caption k is a negative of clip i, and
P_i = Σ_{k∈bag(i)} e^{s_ik},  R_i = Σ_k m(i,k) e^{s_ik},  C_i = Σ_{k∈bag(i)} Σ_j m(j,k) e^{s_jk}:

    A_i = log(c·P_i + R_i [+ C_i if symmetric])     L = mean over non-empty bags of (A_i − log P_i)

    w_i = e^{−A_i} (0 if bag(i) = ∅),  u_k = Σ_{i: k∈bag(i)} w_i (0 unless symmetric):
    N_valid · ∂L/∂s_ik = e^{s_ik} [ m(i,k)(w_i + u_k) + 1_{k∈bag(i)}(c·w_i − 1/P_i) ]

A memory bank's captions are further k of R_i (with u_k = 0), its clips further j of C_i (w_j = 0).

Each rank does the rows of its own clips against all captions and the rows of its own captions
against all clips, in tiles that the backward pass computes again. It returns W × its own share of
the gradient, so that the mean that DDP takes is the gradient of one process, for every parameter,
the temperature included.

Letters: B own clips, N own captions, D numbers of an embedding, A captions of a bag, E excluded
pairs, P positive pairs, W ranks.
"""

from __future__ import annotations

from functools import cache
from math import inf, log

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trainer.distributed import World
from trainer.loss_plan import Past, Plan, check_finite, check_input, make_plan
from trainer.tiles import SAFE, Weights, add_gradients, log_sums

CPU_TILE = 2**21
"""Numbers of one tile of similarities on a CPU: 8 MB in fp32, about what its caches hold. Two tiles
are all the memory beside the embeddings."""
GPU_TILE = 2**26
"""On a GPU: 256 MB in fp32. Each tile takes some ten launches, which a smaller one is over before;
8,192 clips and 131,072 captions are 16 of these, and would be 512 of a CPU's."""
FREE_SHARE = 8
"""Two tiles take at most one part in so many of a GPU's free memory; the rest is the towers'."""


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
    reduction: str = "mean",
    past: Past | None = None,
    world: World | None = None,
    counts_W3: np.ndarray | None = None,
    largest: float | None = None,
    tile: int | None = None,
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
        reduction: `mean` over the non-empty bags of all ranks, or `none`: this rank's terms [B],
            0 for an empty bag; a gradient then belongs to the sum of what all ranks make of theirs.
        past: a memory bank's entries (`trainer.memory_bank`).
        world: the ranks; None for one process.
        counts_W3: each rank's clips, captions and non-empty bags, if already exchanged.
        largest: a bound of |similarity| if known, equal on all ranks; on a GPU it is not measured,
            and without it each number costs two exps.
        tile: numbers of one tile of similarities; None: as suits the device (`tile_of`).

    Raises:
        ValueError: shapes that do not fit, an index out of range or repeated, a temperature that is
            not positive, or (on the CPU) embeddings that are not finite.
    """
    world = world or World.alone(clips_BD.device.type)
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction is {reduction!r}, allowed: 'mean', 'none'")
    bags = bag_idx_BA.detach().cpu().numpy()
    check_input(clips_BD, captions_ND, bags, temperature)
    plan = make_plan(
        bags, len(captions_ND), excluded_E2, counts_W3, past, world,
        device=clips_BD.device, tile=tile or tile_of(clips_BD.device), symmetric=symmetric,
        positive_weight=positive_weight, reduction=reduction,
    )  # fmt: skip
    with torch.autocast(clips_BD.device.type, enabled=False):
        dtype = torch.promote_types(
            torch.float32, torch.promote_types(clips_BD.dtype, captions_ND.dtype)
        )
        clips_BD, captions_ND = clips_BD.to(dtype), captions_ND.to(dtype)
        if normalize:
            clips_BD = functional.normalize(clips_BD, dim=1)
            captions_ND = functional.normalize(captions_ND, dim=1)
        if not isinstance(temperature, torch.Tensor):  # filled there: a copy would wait for a GPU
            temperature = torch.full((), temperature, dtype=dtype, device=clips_BD.device)
        scale = 1 / temperature.to(clips_BD.device, dtype)
        return _MilNce.apply(clips_BD * scale, captions_ND, scale, plan, past, largest)


@cache
def tile_of(device: torch.device) -> int:
    """Numbers of a tile on a device: a power of two, asked once, for sums round by their tiles."""
    if device.type != "cuda":
        return CPU_TILE
    free, _ = torch.cuda.mem_get_info(device)
    fitting = free // (FREE_SHARE * 2 * 4)
    return min(GPU_TILE, max(CPU_TILE, 2 ** (fitting.bit_length() - 1)))


class _MilNce(torch.autograd.Function):
    """The formulas at the top of this file; the clips come divided by the temperature."""

    @staticmethod
    def forward(ctx, clips_BD, captions_ND, scale, plan: Plan, past: Past | None, largest):
        world = plan.world
        all_clips = world.gather_rows(clips_BD, plan.clip_counts)
        all_captions = world.gather_rows(captions_ND, plan.caption_counts)
        safe = _is_safe(all_clips, all_captions, scale, plan, past, largest)
        rows_B, columns_N, s_P = log_sums(
            clips_BD, all_captions, plan.clips, safe=safe,
            with_columns=plan.symmetric and plan.captions is None,
        )  # fmt: skip
        if plan.symmetric and plan.captions is not None:
            columns_N, _, _ = log_sums(captions_ND, all_clips, plan.captions, safe=safe)
        if past is not None and plan.past_captions:
            more_B, _, _ = log_sums(clips_BD, past.captions_MD, plan.past_captions, safe=safe)
            rows_B = torch.logaddexp(rows_B, more_B)
        if past is not None and plan.past_clips:
            past_clips = past.clips_MD * scale
            more_N, _, _ = log_sums(captions_ND, past_clips, plan.past_clips, safe=safe)
            columns_N = torch.logaddexp(columns_N, more_N)

        log_p_B = _of_bags(s_P, plan).logsumexp(dim=1)
        terms = [log_p_B + log(plan.positive_weight), rows_B]
        if plan.symmetric:
            terms.append(_of_bags(columns_N[plan.caption_P], plan).logsumexp(dim=1))
        empty_B = ~plan.filled_BA.any(dim=1)
        a_B = torch.stack(terms).logsumexp(dim=0).masked_fill(empty_B, inf)
        ctx.plan, ctx.past, ctx.safe = plan, past, safe
        ctx.save_for_backward(
            clips_BD, captions_ND, scale, all_clips, all_captions, a_B, log_p_B, s_P
        )
        own_B = (a_B - log_p_B).masked_fill(empty_B, 0)
        if plan.reduction == "none":
            return own_B
        return world.sum(own_B.sum()) / max(plan.num_valid, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        plan, past, safe = ctx.plan, ctx.past, ctx.safe
        clips_BD, captions_ND, scale, all_clips, all_captions, a_B, log_p_B, s_P = ctx.saved_tensors
        incoming_B = grad_output * plan.world.size
        if plan.reduction == "mean":
            incoming_B = (incoming_B / max(plan.num_valid, 1)).expand(len(a_B))
        w_B = Weights(incoming_B.abs().log() - a_B, incoming_B.sign())
        u_N = _of_captions(w_B, plan, len(captions_ND)) if plan.symmetric else None
        i_P = plan.clip_P
        g_P = plan.positive_weight * (s_P - a_B[i_P]).exp() - (s_P - log_p_B[i_P]).exp()
        g_P *= incoming_B[i_P]

        d_clips_BD, d_captions_ND = torch.zeros_like(clips_BD), torch.zeros_like(captions_ND)
        if plan.captions is None:
            add_gradients(
                clips_BD, captions_ND, plan.clips, safe=safe, row_weights=w_B, column_weights=u_N,
                g_P=g_P, d_XD=d_clips_BD, d_YD=d_captions_ND,
            )  # fmt: skip
        else:
            all_w = _gathered(w_B, plan.world, plan.clip_counts)
            all_u = _gathered(u_N, plan.world, plan.caption_counts)
            add_gradients(
                clips_BD, all_captions, plan.clips, safe=safe, row_weights=w_B,
                column_weights=all_u, g_P=g_P, d_XD=d_clips_BD,
            )  # fmt: skip
            add_gradients(
                captions_ND, all_clips, plan.captions, safe=safe, row_weights=u_N,
                column_weights=all_w, g_P=g_P, d_XD=d_captions_ND,
            )  # fmt: skip
        none_P = g_P[:0]
        if plan.past_captions:
            add_gradients(
                clips_BD, past.captions_MD, plan.past_captions, safe=safe, row_weights=w_B,
                column_weights=None, g_P=none_P, d_XD=d_clips_BD,
            )  # fmt: skip
        d_scale = None
        if plan.past_clips:
            d_past_ND = torch.zeros_like(captions_ND)
            add_gradients(
                captions_ND, past.clips_MD * scale, plan.past_clips, safe=safe, row_weights=u_N,
                column_weights=None, g_P=none_P, d_XD=d_past_ND,
            )  # fmt: skip
            d_scale = (captions_ND * d_past_ND).sum() / scale
            d_captions_ND += d_past_ND
        return d_clips_BD, d_captions_ND, d_scale, None, None, None


def _is_safe(all_clips, all_captions, scale, plan: Plan, past: Past | None, largest) -> bool:
    """Whether sums of e^s may be taken as they are; on the CPU also checks that all is finite."""
    if not all_clips.is_cuda:
        peaks = [_peak(all_clips), _peak(all_captions)]
        if not all(peak < inf for peak in peaks):
            check_finite(all_clips, "clip", plan.clip_counts)
            check_finite(all_captions, "caption", plan.caption_counts)
        if past is not None:
            peaks[0] = max(peaks[0], _peak(past.clips_MD) * float(scale))
            peaks[1] = max(peaks[1], _peak(past.captions_MD))
        largest = peaks[0] * peaks[1]
    return largest is not None and largest <= SAFE[all_clips.dtype]


def _peak(rows_XD: torch.Tensor) -> float:
    """The largest norm: NaN or infinite where a number is."""
    if not rows_XD.numel():
        return 0.0
    return float(torch.linalg.vector_norm(rows_XD, dim=1).max())


def _of_bags(values_P: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Values of the positive pairs as [B, A], -inf where padded."""
    values_BA = values_P.new_full(plan.filled_BA.shape, -inf)
    return values_BA.masked_scatter(plan.filled_BA, values_P)


def _of_captions(weights_B: Weights, plan: Plan, num_captions: int) -> Weights:
    """For each own caption the sum of the weights of the clips whose bag holds it: [N]."""
    assert weights_B.sign is not None
    values_P = weights_B.log[plan.clip_P]
    k_P = plan.caption_P
    peak_N = values_P.new_full((num_captions,), -inf).scatter_reduce(
        0, k_P, values_P, reduce="amax"
    )
    shifted_P = torch.where(values_P == -inf, 0.0, (values_P - peak_N[k_P]).exp())
    sum_N = values_P.new_zeros(num_captions).index_add(
        0, k_P, shifted_P * weights_B.sign[plan.clip_P]
    )
    return Weights(peak_N + sum_N.abs().log(), sum_N.sign())


def _gathered(weights: Weights | None, world: World, counts: list[int]) -> Weights | None:
    if weights is None:
        return None
    assert weights.sign is not None
    both = world.gather_rows(torch.stack([weights.log, weights.sign], dim=1), counts)
    return Weights(both[:, 0].contiguous(), both[:, 1].contiguous())
