"""The one checkpoint: which videos and captions each shard holds, as the disk has them now.

Reads   the videos table and the captions (a folder, or one table or JSON file)
Writes  results/plan/{shard}.tsv and {shard}.captions for each `videos_per_shard` rows of the table,
        results/plan/unmatched.json (captions of no video, videos without captions), the parts of a
        single captions file (--parts), and the order of ids for the next time (--order)
Run     python -m pipeline.plan --settings results/settings/plan.json --output results/plan
            --parts results/captions/parts --order results/.plan/order.txt

Lists carry sizes and modification times (parts: their digest), so equal bytes mean that nothing of
the shard has changed. A plan that fails leaves the plan before it as it was.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from pipeline.caption_parts import NAMED, REMOVED, Split, remove_other_parts, split_captions
from pipeline.cli import run
from pipeline.formats.caption_folder import CaptionFile, list_caption_files, match_caption_files
from pipeline.formats.command_line import CommandLine
from pipeline.formats.names import shard_name
from pipeline.formats.order import Order, check_order, write_order
from pipeline.formats.plan import (
    PlannedCaptions,
    PlannedVideo,
    Unmatched,
    write_planned_captions,
    write_planned_videos,
    write_unmatched,
)
from pipeline.formats.settings import read_settings
from pipeline.formats.videos import VideoEntry, read_videos
from pipeline.settings import PlanSettings

logger = logging.getLogger(__name__)

MAX_LIST_BYTES = 1_000_000
"""Snakemake compares larger files by time alone, and would run their shards again and again."""
_THREADS = 32
_STAT_SLICE = 256  # a task for each path costs more than the stat


def make_plan(
    settings: PlanSettings, *, output: Path, parts: Path, order: Path, allow_reorder: bool
) -> None:
    """Plan all shards and write their lists.

    Raises:
        FileNotFoundError: the videos table or the captions are missing.
        ValueError: the table was re-ordered or its shards resized, no video is usable, no caption
            belongs to a video, the captions are none, or a list is too large.
    """
    entries = read_videos(settings.videos)
    if not entries:
        raise ValueError(f"{settings.videos}: no usable video at all: a header and no row")
    now = Order([entry.video_id for entry in entries], settings.videos_per_shard)
    check_order(order, now, table=settings.videos, allow_reorder=allow_reorder)
    videos = stat_videos(entries)
    _check_usable(settings.videos, videos)
    shard_of = {
        video.video_id: row // settings.videos_per_shard if video.path else REMOVED
        for row, video in enumerate(videos)
    }
    num_shards = -(-len(videos) // settings.videos_per_shard)
    captions, split, unmatched = plan_captions(settings.captions, shard_of, num_shards, parts)
    for sentence in unmatched.sentences():
        logger.warning("plan.captions, %s: %s", settings.captions, sentence)
    lists = {}
    for shard in range(num_shards):
        first = shard * settings.videos_per_shard
        rows = videos[first : first + settings.videos_per_shard]
        lists[shard_name(shard)] = (rows, captions[shard])
    write_plan(output, lists, unmatched)
    remove_other_parts(parts, split)
    write_order(order, now)
    missing = sum(bool(v.path) and v.size_bytes < 0 for v in videos)
    logger.info("%d videos (%d files missing), %d shards", len(videos), missing, num_shards)


def stat_videos(entries: list[VideoEntry]) -> list[PlannedVideo]:
    """Look at each video's file once; where there is none, size and time are -1."""
    stats = _stat_all([entry.path for entry in entries])
    return [
        PlannedVideo(entry.video_id, entry.path, entry.split, *stat)
        for entry, stat in zip(entries, stats, strict=True)
    ]


def _stat_all(paths: list[str]) -> list[tuple[int, int]]:
    slices = [paths[at : at + _STAT_SLICE] for at in range(0, len(paths), _STAT_SLICE)]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda few: [_size_and_time(path) for path in few], slices)
        return [stat for stats in found for stat in stats]


def _size_and_time(path: str) -> tuple[int, int]:
    if not path:
        return -1, -1
    try:
        stat = os.stat(path)
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _check_usable(table: str, videos: list[PlannedVideo]) -> None:
    if any(video.size_bytes >= 0 for video in videos):
        return
    named = [video.path for video in videos if video.path]
    example = f", as {named[0]!r}" if named else ""
    raise ValueError(
        f"{table}: no usable video at all: of {len(videos)} rows, {len(videos) - len(named)} have"
        f" an empty path and {len(named)} name a file that is not there{example}"
        f" (looked from {os.getcwd()})"
    )


def plan_captions(
    source: str, shard_of: dict[str, int], num_shards: int, parts: Path
) -> tuple[list[list[PlannedCaptions]], Split | None, Unmatched]:
    """The caption sources of each shard; the split, if `source` is one file; what is unmatched."""
    if Path(source).is_dir():
        found, unmatched = _from_folder(source, shard_of, num_shards)
        return found, None, unmatched
    if not Path(source).exists():
        raise FileNotFoundError(
            f"plan.captions: {source} does not exist; name a folder of caption files, or one CSV,"
            " TSV, parquet or JSON file"
        )
    split = split_captions(source, shard_of, parts)
    if not split.rows:
        _refuse_no_match(source, shard_of, split.foreign_ids)
    logger.info("%s: %d captions of %d videos", source, split.rows, split.videos)
    sources = [split.sources(parts, shard) for shard in range(num_shards)]
    return sources, split, split.unmatched


def _from_folder(
    folder: str, shard_of: dict[str, int], num_shards: int
) -> tuple[list[list[PlannedCaptions]], Unmatched]:
    files = list_caption_files(folder)
    matched, strays = match_caption_files(files, shard_of)
    usable = [video_id for video_id, shard in shard_of.items() if shard != REMOVED]
    chosen = [(video_id, matched[video_id][0].path) for video_id in usable if video_id in matched]
    if not chosen:
        _refuse_no_match(folder, shard_of, (file.likely_id for file in files))
    _log_choices(matched)
    stats = _stat_all([path for _, path in chosen])
    shards: list[list[PlannedCaptions]] = [[] for _ in range(num_shards)]
    for (video_id, path), (size, mtime) in zip(chosen, stats, strict=True):
        shards[shard_of[video_id]].append(PlannedCaptions(video_id, path, size, str(mtime)))
    logger.info("%s: captions of %d of %d videos", folder, len(chosen), len(usable))
    silent = [video_id for video_id in usable if video_id not in matched]
    return shards, Unmatched(
        unit="caption files",
        captions=len(strays),
        caption_names=[Path(file.path).name for file in strays[:NAMED]],
        videos=len(silent),
        video_ids=silent[:NAMED],
    )


def _log_choices(matched: dict[str, list[CaptionFile]]) -> None:
    several = [files for files in matched.values() if len(files) > 1]
    if several:
        first, second, *_ = several[0]
        logger.warning(
            "%d videos have several caption files; the preferred one is read, as %s before %s"
            " (.vtt and .srt carry their unit, the times of others are in captions.unit)",
            len(several), first.path, second.path,
        )  # fmt: skip


def _refuse_no_match(source: str, shard_of: dict[str, int], found: Iterable[str]) -> None:
    usable = (video_id for video_id, shard in shard_of.items() if shard != REMOVED)
    ours = ", ".join(map(repr, islice(usable, NAMED)))
    theirs = ", ".join(map(repr, islice(found, NAMED)))
    if not theirs:
        raise ValueError(
            f"plan.captions: {source} holds no caption, or of removed videos only;"
            " config/README.md shows its forms"
        )
    raise ValueError(
        f"no caption of {source} belongs to any video: the videos are {ours}; the captions speak"
        f" of {theirs}; make the ids equal (a caption file is named after its video's id)"
    )


def write_plan(
    output: Path,
    lists: dict[str, tuple[list[PlannedVideo], list[PlannedCaptions]]],
    unmatched: Unmatched,
) -> None:
    """Write the lists of all shards (by name) into `output`, and remove those of other shards."""
    scratch = output.with_name(output.name + ".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        # In threads, for a disk takes many waits for it together.
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(lambda item: _write_lists(scratch, item[0], *item[1]), lists.items()):
                pass
        write_unmatched(scratch, unmatched)
        output.mkdir(parents=True, exist_ok=True)
        _remove_all_but(lists.keys(), output)
        for path in scratch.iterdir():
            os.replace(path, output / path.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_all_but(shards: Set[str], folder: Path) -> None:
    """Remove the lists of other shards, and name these: what they hold is in other shards now."""
    lists = [path for path in folder.iterdir() if path.suffix in (".tsv", ".captions")]
    others = [path for path in lists if path.stem not in shards]
    for path in others:
        path.unlink()
    if others:
        logger.warning(
            "no longer planned, and read by no stage: shards %s; their files may be deleted",
            ", ".join(sorted({path.stem for path in others})[:20]),
        )


def _write_lists(
    folder: Path, name: str, videos: list[PlannedVideo], captions: list[PlannedCaptions]
) -> None:
    size = max(
        write_planned_videos(folder / f"{name}.tsv", videos),
        write_planned_captions(folder / f"{name}.captions", captions),
    )
    if size > MAX_LIST_BYTES:
        raise ValueError(
            f"the list of shard {name} has {size:,} bytes, allowed are {MAX_LIST_BYTES:,}:"
            " lower plan.videos_per_shard"
        )


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = CommandLine(
        prog="python -m pipeline.plan",
        description="The videos table and the captions go in; the lists of each shard come out.",
    )
    parser.add_argument("--settings", type=Path, required=True, help="frozen section `plan`")
    parser.add_argument("--output", type=Path, required=True, help="folder of the lists")
    parser.add_argument("--parts", type=Path, required=True, help="folder of a table's parts")
    parser.add_argument("--order", type=Path, required=True, help="the order of ids, kept")
    parser.add_argument("--allow-reorder", action="store_true", help="accept another order once")
    arguments = parser.parse_args(argv)
    make_plan(
        read_settings(PlanSettings, arguments.settings),
        output=arguments.output,
        parts=arguments.parts,
        order=arguments.order,
        allow_reorder=arguments.allow_reorder,
    )


if __name__ == "__main__":
    run(main)
