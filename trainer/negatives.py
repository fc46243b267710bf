"""Which captions are no negatives of which clips, and what the loss of a blind model would be.

Pure functions on numpy arrays over the *global* batch. Letters: B clips, N captions, A captions of
a bag, E excluded pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipKeys:
    """What decides a clip's negatives."""

    video_B: np.ndarray
    """[B] int64: equal for clips of the same video."""
    start_B: np.ndarray
    """[B] float64 seconds."""
    stop_B: np.ndarray
    """[B] float64 seconds."""
    bag_idx_BA: np.ndarray
    """[B, A] int64: rows of the captions, -1 = padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionKeys:
    """What decides whose negative a caption is."""

    video_N: np.ndarray
    """[N] int64: equal for captions of the same video."""
    start_N: np.ndarray
    """[N] float64 seconds."""
    stop_N: np.ndarray
    """[N] float64 seconds."""
    hash_N: np.ndarray
    """[N] int64: equal for captions that read the same."""


def excluded_pairs(
    clips: ClipKeys,
    captions: CaptionKeys,
    *,
    policy: str,
    margin_seconds: float,
    exclude_same_text: bool,
) -> np.ndarray:
    """The (clip, caption) pairs outside bags that are no negatives: [E, 2] int64, sorted, unique.

    `overlap` excludes captions of the clip's video whose span meets the clip's, widened by
    `margin_seconds` (touching is meeting); `same_video` all captions of the clip's video; `none`
    none of these. `exclude_same_text` also excludes captions that read like one of the bag.
    """
    num_captions = len(captions.video_N)
    found = [np.zeros(0, np.int64)]
    if policy in ("overlap", "same_video"):
        clip_E, caption_E = matches(clips.video_B, captions.video_N)
        if policy == "overlap":
            meets_E = (captions.start_N[caption_E] <= clips.stop_B[clip_E] + margin_seconds) & (
                captions.stop_N[caption_E] >= clips.start_B[clip_E] - margin_seconds
            )
            clip_E, caption_E = clip_E[meets_E], caption_E[meets_E]
        found.append(clip_E * num_captions + caption_E)
    elif policy != "none":
        raise ValueError(f"exclusion is {policy!r}, allowed: 'none', 'overlap', 'same_video'")
    clip_P, slot_P = np.nonzero(clips.bag_idx_BA >= 0)
    positive_P = clips.bag_idx_BA[clip_P, slot_P].astype(np.int64)
    if exclude_same_text:
        pair_E, caption_E = matches(captions.hash_N[positive_P], captions.hash_N)
        found.append(clip_P[pair_E] * num_captions + caption_E)
    codes_E = np.setdiff1d(np.concatenate(found), clip_P * num_captions + positive_P)
    return np.stack(np.divmod(codes_E, max(num_captions, 1)), axis=1)


def count_negatives(
    bag_idx_BA: np.ndarray, excluded_E2: np.ndarray, num_captions: int, *, symmetric: bool
) -> np.ndarray:
    """How many negative terms each clip's denominator has: [B] int64.

    These are the captions that may be its negatives and, if `symmetric`, for each caption of its
    bag the clips that this caption may be a negative of.
    """
    num_clips = len(bag_idx_BA)
    filled_BA = bag_idx_BA >= 0
    excluded_B = np.bincount(excluded_E2[:, 0], minlength=num_clips)
    negatives_B = num_captions - filled_BA.sum(axis=1) - excluded_B
    if symmetric:
        own_N = np.bincount(bag_idx_BA[filled_BA], minlength=num_captions)
        clips_N = num_clips - own_N - np.bincount(excluded_E2[:, 1], minlength=num_captions)
        clips_BA = np.where(filled_BA, clips_N[np.where(filled_BA, bag_idx_BA, 0)], 0)
        negatives_B = negatives_B + clips_BA.sum(axis=1)
    return negatives_B


def chance_level(bag_sizes_B: np.ndarray, negatives_B: np.ndarray, positive_weight: float) -> float:
    """The loss of a model to which all pairs look alike: mean log(c + negatives/|bag|).

    Clips with an empty bag have no loss; without any other the level is 0.
    """
    valid_B = bag_sizes_B > 0
    if not valid_B.any():
        return 0.0
    ratio_B = negatives_B[valid_B] / bag_sizes_B[valid_B]
    return float(np.mean(np.log(positive_weight + ratio_B)))


def matches(left_B: np.ndarray, right_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All (row of left, row of right) with equal values, as two int64 arrays."""
    order_N = np.argsort(right_N, kind="stable")
    sorted_N = right_N[order_N]
    first_B = np.searchsorted(sorted_N, left_B, side="left")
    count_B = np.searchsorted(sorted_N, left_B, side="right") - first_B
    left_E = np.repeat(np.arange(len(left_B)), count_B)
    within_E = np.arange(len(left_E)) - np.repeat(np.cumsum(count_B) - count_B, count_B)
    return left_E, order_N[np.repeat(first_B, count_B) + within_E]
