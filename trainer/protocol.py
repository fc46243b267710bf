"""What a model is tested on: pairs of a text and a clip, and where the clips' features lie.

A clip owns the feature rows whose middle (of their valid frames) lies in [start, end), or else the
row whose middle is nearest to the clip's. Or, as the benchmarks do, it is looked at through a fixed
number of windows spread evenly over it, whose embeddings are averaged.

Letters: T feature rows of a video, L token ids of a caption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.formats.bags import VAL, Bags, read_bags
from pipeline.formats.files import digest_of
from pipeline.formats.names import again, video_id_of
from pipeline.formats.recipe import Recipe
from pipeline.formats.shard import IndexRow, read_index
from pipeline.formats.tokenizer import encode_caption
from trainer.clip_list import TestRow

SPARE_SECONDS = 0.4
"""That MIL-NCE's evaluation (msrvtt_loader.py, youcook_loader.py) leaves behind the last window."""
BEYOND = "clip_behind_its_end"
"""Why a clip is missing that begins where its video's features have ended."""
MAX_VAL_PAIRS = 4096
"""Of the validation split; a larger one is thinned by a hash, so that the choice stays the same."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and the place of its clip's features."""

    row: TestRow
    token_ids: list[int]
    """Empty: none of its words is known."""
    shard: str
    offset: int
    """Byte of the tar at which the video's features start."""
    first: int
    """The clip's first feature row within the video."""
    count: int
    windows: tuple[int, ...] = ()
    """Rows, counted from `first`, that are embedded one by one and averaged, repeats included;
    empty: all `count` rows are pooled by the model."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """The pairs that can be tested, and what is missing."""

    pairs: list[Pair]
    num_rows: int
    """Of the list, missing ones included."""
    missing: dict[str, str]
    """Video id to the reason why it, or a clip of it, has no features."""
    num_missing_rows: int


def pairs_of_list(
    rows: list[TestRow],
    shards: Path,
    names: list[str],
    vocabulary: dict[str, int],
    max_words: int,
    recipe: Recipe,
    num_windows: int | None = None,
) -> Protocol:
    """Locate the clips of a list in the shards' indexes, in the list's order.

    Raises:
        ValueError: a shard's features are of another recipe than `recipe`, or its tar is cut.
    """
    wanted = {row.video_id for row in rows}
    places: dict[str, tuple[str, IndexRow]] = {}
    for name in names:
        index = read_index(shards / f"{name}.parquet")
        check_shard(shards / f"{name}.tar", index.tar_bytes, index.recipe, recipe)
        places |= {row.video_id: (name, row) for row in index.rows if row.video_id in wanted}
    missing = {
        video_id: (places[video_id][1].reason or "failed") if video_id in places else "not_in_table"
        for video_id in sorted(wanted)
        if video_id not in places or not places[video_id][1].encoded
    }
    pairs, late = [], {}
    for row in rows:
        if row.video_id in missing:
            continue
        place = places[row.video_id]
        if row.start >= _seconds(place[1], recipe):
            late[row.video_id] = BEYOND
            continue
        ids = encode_caption(row.text, vocabulary, max_words)
        pairs.append(_pair(row, *place, ids, recipe))
    missing |= late
    if num_windows:
        pairs = [
            with_windows(pair, places[pair.row.video_id][1].num_vectors, recipe, num_windows)
            for pair in pairs
        ]
    return Protocol(pairs, len(rows), missing, len(rows) - len(pairs))


def _seconds(place: IndexRow, recipe: Recipe) -> float:
    """How far a video's features reach."""
    return place.num_frames / recipe.sampling.frame_rate


def _pair(row: TestRow, shard: str, place: IndexRow, ids: list[int], recipe: Recipe) -> Pair:
    if math.isinf(row.end):
        row = replace(row, end=_seconds(place, recipe))
    first, count = rows_of_span(recipe, place.num_frames, row.start, row.end)
    return Pair(row, ids, shard, place.offset, first, count)


def with_windows(pair: Pair, num_vectors: int, recipe: Recipe, num_windows: int) -> Pair:
    """The same pair, its clip seen through `num_windows` windows."""
    rows = window_rows(recipe, num_vectors, pair.row.start, pair.row.end, num_windows)
    first, last = min(rows), max(rows)
    relative = tuple(row - first for row in rows)
    return replace(pair, first=first, count=last - first + 1, windows=relative)


def window_starts(start: float, end: float, window_seconds: float, num: int) -> np.ndarray:
    """Seconds at which `num` windows of a clip begin: [num] float64.

    From the clip's start to one window and `SPARE_SECONDS` before its end, as MIL-NCE's evaluation
    places them; in a clip that is shorter all begin where it does.
    """
    return np.linspace(start, max(start, end - window_seconds - SPARE_SECONDS), num)


def window_rows(
    recipe: Recipe, num_vectors: int, start: float, end: float, num: int
) -> tuple[int, ...]:
    """The feature rows whose own start is nearest to that of each window."""
    sampling = recipe.sampling
    starts = window_starts(start, end, sampling.frames / sampling.frame_rate, num)
    rows = np.floor(starts / sampling.stride_seconds + 0.5).astype(int)
    return tuple(np.clip(rows, 0, num_vectors - 1).tolist())


def rows_of_span(recipe: Recipe, num_frames: int, start: float, end: float) -> tuple[int, int]:
    """First feature row of the clip [start, end) and how many it owns, at least 1."""
    starts_T, stops_T = recipe.sampling.spans(num_frames)
    middles_T = (starts_T + stops_T) / 2
    first, stop = np.searchsorted(middles_T, (start, end))
    if first == stop:
        return int(np.abs(middles_T - (start + end) / 2).argmin()), 1
    return int(first), int(stop - first)


def pairs_of_validation(
    bags_folder: Path,
    shards: Path,
    names: list[str],
    vocabulary: dict[str, int],
    recipe: Recipe,
    num_windows: int | None = None,
) -> Protocol:
    """The validation split's clips, each with the caption nearest to it.

    Raises:
        ValueError: the split holds no clip, a shard's features are of another recipe than `recipe`,
            or its tar is cut.
    """
    words = {token_id: word for word, token_id in vocabulary.items()}
    pairs = []
    for name in names:
        bags = read_bags(bags_folder / f"{name}.npz")
        found = Recipe.from_dict(bags.metadata["recipe"])
        check_shard(shards / f"{name}.tar", bags.metadata["tar_bytes"], found, recipe)
        pairs += _validation_pairs(name, bags, words, recipe, num_windows)
    if not pairs:
        raise ValueError(
            "the validation split holds no clip: name a CSV in the protocol's clips,"
            " raise bags.val_fraction, or give videos the split `val` in the table"
        )
    if len(pairs) > MAX_VAL_PAIRS:
        order = sorted(pairs, key=lambda pair: digest_of([pair.row.video_id, pair.row.start]))
        kept = {id(pair) for pair in order[:MAX_VAL_PAIRS]}
        pairs = [pair for pair in pairs if id(pair) in kept]
    return Protocol(pairs, len(pairs), {}, 0)


def _validation_pairs(
    name: str, bags: Bags, words: dict[int, str], recipe: Recipe, num_windows: int | None
) -> list[Pair]:
    pairs = []
    for clip in np.flatnonzero(bags.video_split[bags.clip_video] == VAL):
        video, caption = bags.clip_video[clip], bags.bag_idx[clip, 0]
        ids = [int(token_id) for token_id in bags.cap_ids[caption] if token_id]
        row = TestRow(
            video_id_of(bags.vid_paths[video].decode("ascii")),
            float(bags.clip_start[clip]),
            float(bags.clip_stop[clip]),
            " ".join(words[token_id] for token_id in ids),
        )
        offset, start = int(bags.feature_offset[video]), int(bags.clip_feature_start[clip])
        count = int(bags.clip_feature_count[clip])
        pair = Pair(row, ids, name, offset, start, count)
        if num_windows:
            pair = with_windows(pair, int(bags.feature_count[video]), recipe, num_windows)
        pairs.append(pair)
    return pairs


def check_shard(tar: Path, tar_bytes: int, found: Recipe, expected: Recipe) -> None:
    """Refuse features that the model has not learned from, and a tar of another size."""
    if found != expected:
        ours, theirs = found.to_dict(), expected.to_dict()
        differing = "; ".join(
            f"{name} {theirs[name]!r} became {ours[name]!r}"
            for name in ours
            if ours[name] != theirs[name]
        )
        raise ValueError(
            f"{tar} holds features of another recipe than the model's ({differing}):"
            f" {again('train')}"
        )
    if not tar.is_file() or tar.stat().st_size != tar_bytes:
        raise ValueError(f"{tar} is missing or has not the size of its index: {again(tar)}")
