"""Stage `bags`: a shard's feature index and captions become its clips and their bags of captions.

Reads   plan/{shard}.tsv (splits), shards/{shard}.parquet, captions/{shard}.parquet, vocabulary.txt
Writes  bags/{shard}.npz
By hand `python -m pipeline.bags --help`

No feature is read or copied: a clip is stored as a range of rows of its video's array in the shard.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from pipeline import clips
from pipeline.cli import run
from pipeline.formats.bags import TRAIN, VAL, Bags, write_bags
from pipeline.formats.captions import Caption, read_captions
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import sha256_of_file
from pipeline.formats.plan import read_planned_videos
from pipeline.formats.settings import read_settings
from pipeline.formats.shard import IndexRow, ShardIndex, read_index
from pipeline.formats.tokenizer import token_ids, tokenize
from pipeline.formats.vocabulary import read_vocabulary
from pipeline.settings import BagsSettings, VocabularySettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownCaptions:
    """The captions of one video that have a known word: [M] times, and M lists of token ids."""

    starts_M: np.ndarray
    stops_M: np.ndarray
    token_ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class VideoClips:
    """The clips of one video: [C] times and feature rows, [C, A] bags of the video's captions."""

    starts_C: np.ndarray
    stops_C: np.ndarray
    first_row_C: np.ndarray
    num_rows_C: np.ndarray
    bags_CA: np.ndarray


def build_bags(
    index: ShardIndex,
    captions: Iterable[Caption],
    splits: dict[str, str],
    vocabulary: dict[str, int],
    settings: BagsSettings,
    *,
    max_caption_words: int,
) -> Bags:
    """Make the bags of one shard, without the digests that `main` adds to the metadata.

    Args:
        index: the shard's feature index; only its encoded videos take part.
        captions: of any videos, grouped by video and sorted by time.
        splits: video id to `train`, `val`, or empty for a split by the id's hash.
        vocabulary: word to token id.
        settings: the config section.
        max_caption_words: token ids kept of a caption.

    Raises:
        ValueError: a clip would be shorter than the time between two feature vectors.
    """
    _check_clip_length(settings, index)
    by_video = {vid: list(group) for vid, group in groupby(captions, key=lambda c: c.video_id)}
    rows = [row for row in index.rows if row.encoded]
    counts: Counter[str] = Counter(_counts_of_others(by_video, rows))
    known = [
        _known_captions(by_video.get(row.video_id, []), row, vocabulary, max_caption_words, counts)
        for row in rows
    ]
    made = [
        _video_clips(row, index, caps, settings, counts)
        for row, caps in zip(rows, known, strict=True)
    ]
    arrays = _video_arrays(rows, splits, settings.val_fraction)
    arrays |= _caption_arrays(known, max_caption_words)
    arrays |= _clip_arrays(made, known, settings.bag_size)
    bag_sizes = np.bincount((arrays["bag_idx"] >= 0).sum(axis=1), minlength=settings.bag_size + 1)
    counts["videos"], counts["captions"] = len(rows), len(arrays["cap_ids"])
    counts["clips"] = len(arrays["bag_idx"])
    _warn_of_late_captions(counts)
    _warn_of_early_captions(rows, known)
    metadata = {"counts": dict(counts), "clips_by_bag_size": bag_sizes.tolist()}
    return Bags(**arrays, metadata=metadata)


def split_of(video_id: str, given: str, val_fraction: float) -> int:
    """`VAL` or `TRAIN`: as given, else by a hash of the id, so that new videos move no old one."""
    if given:
        return VAL if given == "val" else TRAIN
    draw = int.from_bytes(hashlib.sha256(video_id.encode("utf-8")).digest()[:8], "big") / 2**64
    return VAL if draw < val_fraction else TRAIN


def _check_clip_length(settings: BagsSettings, index: ShardIndex) -> None:
    stride = index.recipe.sampling.stride_seconds
    if settings.clip_seconds < stride:
        raise ValueError(
            f"bags.clip_seconds is {settings.clip_seconds}, below the {stride} s between two"
            " feature vectors, so many clips would own none: raise it or lower the stride"
        )


def _warn_of_late_captions(counts: Counter[str]) -> None:
    """Times in another unit, or of other videos, lie after the end of their videos."""
    late, kept = counts["captions_after_video_end"], counts["captions"]
    if late > kept:
        logger.warning(
            "%d captions start after the end of their video, %d do not: look at captions.unit"
            " (seconds or milliseconds) and captions.offset_seconds",
            late, kept,
        )  # fmt: skip


def _warn_of_early_captions(rows: list[IndexRow], known: list[KnownCaptions]) -> None:
    """Seconds taken for milliseconds: all captions of most videos lie at the very start."""
    many = [
        (row.decoded_seconds, float(captions.stops_M.max()))
        for row, captions in zip(rows, known, strict=True)
        if len(captions.stops_M) >= 3 and row.decoded_seconds >= 5
    ]
    early = sum(stop < 0.01 * seconds for seconds, stop in many)
    if early > len(many) / 2:
        logger.warning(
            "all captions of %d of %d videos end within the first hundredth of their video: look at"
            " captions.unit (seconds or milliseconds)",
            early, len(many),
        )  # fmt: skip


def _counts_of_others(by_video: dict[str, list], rows: list[IndexRow]) -> dict[str, int]:
    encoded = {row.video_id for row in rows}
    return {
        "captions_of_videos_without_features": sum(
            len(captions) for video_id, captions in by_video.items() if video_id not in encoded
        ),
        "videos_without_captions": len(encoded - by_video.keys()),
    }


def _known_captions(
    captions: list[Caption],
    row: IndexRow,
    vocabulary: dict[str, int],
    max_words: int,
    counts: Counter[str],
) -> KnownCaptions:
    """The captions that begin before the picture ends and have a known word."""
    kept = []
    for caption in captions:
        words = tokenize(caption.text)
        known = token_ids(words, vocabulary)
        counts["words_of_captions"] += len(words)
        counts["words_not_in_vocabulary"] += len(words) - len(known)
        if caption.start_seconds >= row.decoded_seconds:
            counts["captions_after_video_end"] += 1
        elif not known:
            counts["captions_without_known_word"] += 1
        else:
            kept.append((caption.start_seconds, caption.end_seconds, known[:max_words]))
    times = np.array([(start, stop) for start, stop, _ in kept], dtype=np.float64).reshape(-1, 2)
    return KnownCaptions(times[:, 0], times[:, 1], [token_ids for _, _, token_ids in kept])


def _video_clips(
    row: IndexRow,
    index: ShardIndex,
    captions: KnownCaptions,
    settings: BagsSettings,
    counts: Counter[str],
) -> VideoClips:
    """The clips of one video that own a feature row and have a caption."""
    if settings.anchor == "caption":
        starts, stops = clips.clips_around_captions(
            captions.starts_M, captions.stops_M, settings.clip_seconds, row.decoded_seconds
        )
    else:
        starts, stops = clips.clips_on_grid(
            settings.grid_seconds, settings.clip_seconds, row.decoded_seconds
        )
    row_starts, row_stops = index.recipe.sampling.spans(row.num_frames)
    first, count = clips.feature_rows(starts, stops, (row_starts + row_stops) / 2)
    bags = clips.nearest_captions(
        (starts, stops),
        (captions.starts_M, captions.stops_M),
        window_seconds=settings.bag_window_seconds,
        bag_size=settings.bag_size,
    )
    without_feature, without_caption = count == 0, bags[:, 0] < 0
    counts["clips_without_feature"] += int(without_feature.sum())
    counts["clips_without_caption"] += int((without_caption & ~without_feature).sum())
    kept = ~(without_feature | without_caption)
    return VideoClips(starts[kept], stops[kept], first[kept], count[kept], bags[kept])


def _video_arrays(rows: list[IndexRow], splits: dict[str, str], val_fraction: float) -> dict:
    split = [split_of(row.video_id, splits.get(row.video_id, ""), val_fraction) for row in rows]
    width = max((len(row.key) for row in rows), default=1)
    return {
        "vid_paths": np.array([row.key.encode("ascii") for row in rows], dtype=f"S{width}"),
        "feature_offset": np.array([row.offset for row in rows], dtype=np.int64),
        "feature_count": np.array([row.num_vectors for row in rows], dtype=np.int32),
        "video_split": np.array(split, dtype=np.int8),
    }


def _caption_arrays(known: list[KnownCaptions], max_words: int) -> dict:
    token_ids = [ids for captions in known for ids in captions.token_ids]
    lens_M = np.array([len(ids) for ids in token_ids], dtype=np.int32)
    ids_ML = np.zeros((len(token_ids), max_words), dtype=np.int32)
    filled_ML = np.arange(max_words) < lens_M[:, None]
    ids_ML[filled_ML] = [token for ids in token_ids for token in ids]
    return {
        "cap_ids": ids_ML,
        "cap_lens": lens_M,
        "cap_video": _owners([len(captions.token_ids) for captions in known]),
        "cap_start": _joined([captions.starts_M for captions in known], np.float64),
        "cap_stop": _joined([captions.stops_M for captions in known], np.float64),
        "cap_hash": np.array([_hash(ids) for ids in ids_ML], dtype=np.int64),
    }


def _clip_arrays(made: list[VideoClips], known: list[KnownCaptions], bag_size: int) -> dict:
    """Join the videos' clips; their bags come to point into the shard's caption table."""
    first_caption = np.cumsum([0, *(len(captions.token_ids) for captions in known)])
    bags = [
        np.where(video.bags_CA >= 0, video.bags_CA + first, -1)
        for video, first in zip(made, first_caption[:-1], strict=True)
    ]
    empty = np.zeros((0, bag_size), np.int32)
    return {
        "clip_video": _owners([len(video.starts_C) for video in made]),
        "clip_start": _joined([video.starts_C for video in made], np.float64),
        "clip_stop": _joined([video.stops_C for video in made], np.float64),
        "clip_feature_start": _joined([video.first_row_C for video in made], np.int32),
        "clip_feature_count": _joined([video.num_rows_C for video in made], np.int32),
        "bag_idx": np.concatenate([empty, *bags]).astype(np.int32),
    }


def _owners(lengths: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def _hash(ids_L: np.ndarray) -> int:
    digest = hashlib.sha256(ids_L.astype("<i4").tobytes()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandLine(
        prog="python -m pipeline.bags",
        description="A shard's feature index and captions in, its clips and bags (.npz) out.",
    )
    parser.add_argument("--plan", required=True, help="plan/{shard}.tsv: the videos' splits")
    parser.add_argument("--index", required=True, help="shards/{shard}.parquet")
    parser.add_argument("--captions", required=True, help="captions/{shard}.parquet")
    parser.add_argument("--vocabulary", required=True, help="vocabulary.txt")
    parser.add_argument("--settings", required=True, help="settings/bags.json")
    parser.add_argument("--vocabulary-settings", required=True, help="settings/vocabulary.json")
    parser.add_argument("--output", required=True, help="bags/{shard}.npz")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Build one shard's bags."""
    args = _arguments(argv)
    settings = read_settings(BagsSettings, args.settings)
    max_words = read_settings(VocabularySettings, args.vocabulary_settings).max_caption_words
    index = read_index(args.index)
    vocabulary = read_vocabulary(args.vocabulary)
    splits = {video.video_id: video.split for video in read_planned_videos(args.plan)}
    captions, _ = read_captions(args.captions)
    bags = build_bags(index, captions, splits, vocabulary, settings, max_caption_words=max_words)
    bags.metadata.update(
        shard=Path(args.output).stem,
        recipe=index.recipe.to_dict(),
        recipe_identity=index.recipe.identity,
        vocabulary_sha256=sha256_of_file(args.vocabulary),
        vocabulary_size=len(vocabulary),
        max_caption_words=max_words,
        tar_bytes=index.tar_bytes,
        tar_sha256=index.tar_sha256,
        settings=asdict(settings),
    )
    write_bags(args.output, bags)
    logger.info(
        "%s: %d clips of %d videos with %d captions",
        args.output, bags.num_clips, bags.num_videos, bags.num_captions,
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
