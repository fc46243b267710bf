"""Pure geometry on the caption clock: which clips a video has, and what each of them owns.

Letters: M captions of one video, C its clips, T its feature rows, A captions of a bag.
All times are float64 seconds.
"""

from __future__ import annotations

import numpy as np

CLIPS_AT_ONCE = 512
"""Bounds the [clips, captions] tables of a very long video."""


def clips_around_captions(
    starts_M: np.ndarray, stops_M: np.ndarray, clip_seconds: float, video_seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    """One clip of `clip_seconds` around the middle of each caption, shifted to lie in the video.

    A video shorter than that is one clip as a whole. Returns starts and stops, each [M].
    """
    length = min(clip_seconds, video_seconds)
    middles_M = (starts_M + stops_M) / 2
    clip_starts_M = np.clip(middles_M - length / 2, 0, video_seconds - length)
    return clip_starts_M, clip_starts_M + length


def clips_on_grid(
    grid_seconds: float, clip_seconds: float, video_seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    """A clip of `clip_seconds` every `grid_seconds`, the last ones cut at the video's end: [C]."""
    starts_C = np.arange(0, video_seconds, grid_seconds)
    return starts_C, np.minimum(starts_C + clip_seconds, video_seconds)


def feature_rows(
    clip_starts_C: np.ndarray, clip_stops_C: np.ndarray, middles_T: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows whose middle lies in [start, stop) of each clip: first row and count, each [C]."""
    first_C = np.searchsorted(middles_T, clip_starts_C, side="left")
    return first_C, np.searchsorted(middles_T, clip_stops_C, side="left") - first_C


def nearest_captions(
    clips: tuple[np.ndarray, np.ndarray],
    captions: tuple[np.ndarray, np.ndarray],
    *,
    window_seconds: float,
    bag_size: int,
) -> np.ndarray:
    """The bag of each clip: [C, bag_size] rows of the captions, nearest first, -1 = padding.

    A caption belongs to a clip when the gap between their spans is at most `window_seconds`; the
    order is by that gap, then by the distance of the middles, then by row.
    """
    bags_CA = np.full((len(clips[0]), bag_size), -1, dtype=np.int32)
    if len(captions[0]) == 0:
        return bags_CA
    for first in range(0, len(bags_CA), CLIPS_AT_ONCE):
        part = slice(first, first + CLIPS_AT_ONCE)
        clip_starts, clip_stops = clips[0][part, None], clips[1][part, None]
        bags_CA[part] = _nearest(clip_starts, clip_stops, captions, window_seconds, bag_size)
    return bags_CA


def _nearest(
    clip_starts_C1: np.ndarray,
    clip_stops_C1: np.ndarray,
    captions: tuple[np.ndarray, np.ndarray],
    window_seconds: float,
    bag_size: int,
) -> np.ndarray:
    starts_M, stops_M = captions
    gaps_CM = np.maximum(starts_M - clip_stops_C1, clip_starts_C1 - stops_M).clip(min=0)
    apart_CM = np.abs((starts_M + stops_M) - (clip_starts_C1 + clip_stops_C1)) / 2
    # A microsecond is the finest time a caption can mean; less is rounding and must not order.
    gaps_CM, apart_CM = gaps_CM.round(6), apart_CM.round(6)
    order_CM = np.lexsort((apart_CM, gaps_CM), axis=-1)[:, :bag_size].astype(np.int32)
    inside_CM = np.take_along_axis(gaps_CM, order_CM, axis=-1) <= window_seconds
    chosen = np.where(inside_CM, order_CM, -1)
    return np.pad(chosen, ((0, 0), (0, bag_size - chosen.shape[1])), constant_values=-1)
