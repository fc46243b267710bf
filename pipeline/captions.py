"""Any caption form becomes one clean table for each shard; then one summary of all tables.

Reads   the shard's list of caption sources (results/plan/{shard}.captions) and the files it names
Writes  results/captions/{shard}.parquet, with counts of what was mended and dropped, by reason
Run     python -m pipeline.captions --plan results/plan/00000.captions
            --settings results/settings/captions.json --output results/captions/00000.parquet

With --summarize it reads the tables of all shards of a plan instead:

        python -m pipeline.captions --summarize results/plan --captions results/captions
            --output results/captions/summary.json

The rules of cleaning stand in `pipeline.caption_cleaning`. A file that is no caption file is named
in the log and counted as `unreadable_file`; one without any caption as `empty_file`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.caption_cleaning import clean_captions
from pipeline.cli import run
from pipeline.formats.caption_sources import (
    RawCaption,
    is_subtitle,
    iterate_captions,
    read_caption_file,
)
from pipeline.formats.caption_summary import CaptionSummary, write_caption_summary
from pipeline.formats.captions import SCHEMA, VERSION, write_captions
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import sha256_of_file
from pipeline.formats.names import again
from pipeline.formats.parquet import read_table
from pipeline.formats.plan import PlannedCaptions, read_planned_captions
from pipeline.formats.settings import read_settings
from pipeline.formats.text_encoding import usual_guess
from pipeline.settings import CaptionsSettings

logger = logging.getLogger(__name__)

SPANS = {name: SCHEMA[name] for name in ("video_id", "start_seconds", "end_seconds")}
SECONDS_PER_UNIT = {"seconds": 1.0, "milliseconds": 0.001}


def clean_shard(plan: Path, settings: CaptionsSettings, output: Path) -> Counter[str]:
    """Clean the captions that `plan` lists, write them to `output` and return the counts."""
    counts: Counter[str] = Counter()
    kept = []
    sources = read_planned_captions(plan)
    guess = usual_guess(source.path for source in sources if source.video_id)
    for source in sources:
        unit = "seconds" if is_subtitle(source.path) else settings.unit
        for rows in _read_by_video(source, counts, guess):
            kept += clean_captions(
                rows, settings, seconds_per_unit=SECONDS_PER_UNIT[unit], counts=counts
            )
    counts = +counts  # without the zeros
    if 2 * counts["without_blanks"] > counts["kept"]:
        logger.warning(
            "%d of %d captions have no blanks between their words (as in Chinese): each run of"
            " letters counts as one word, so have them parted by blanks first",
            counts["without_blanks"], counts["kept"],
        )  # fmt: skip
    write_captions(output, kept, dict(counts))
    return counts


def _read_by_video(
    source: PlannedCaptions, counts: Counter[str], guess: str | None
) -> Iterator[list[RawCaption]]:
    """Yield the raw captions of each video of one source."""
    if not source.video_id:
        yield from _read_part(source.path)
        return
    try:
        rows = read_caption_file(source.path, source.video_id, guess=guess)
    except (ValueError, OSError) as error:
        counts["unreadable_file"] += 1
        logger.warning("no captions for video %r: %s", source.video_id, error)
        return
    counts["empty_file"] += not rows
    yield rows


def _read_part(path: str) -> Iterator[list[RawCaption]]:
    """Yield a table part's rows by video; the part of a shard fits into memory."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} is gone, and the plan wrote it: {again('plan')}")
    by_video: dict[str, list[RawCaption]] = {}
    for row in iterate_captions(path):
        by_video.setdefault(row.video_id, []).append(row)
    yield from by_video.values()


def summarize(plan: Path, captions: Path) -> CaptionSummary:
    """Total the caption tables in `captions` over the shards that the folder `plan` lists."""
    names = sorted(path.stem for path in plan.glob("*.tsv"))
    if not names:
        raise FileNotFoundError(f"{plan} lists no shards: {again('plan')}")
    counts: Counter[str] = Counter()
    shards: dict[str, str] = {}
    videos = total = 0
    seconds = 0.0
    for name in names:
        table = captions / f"{name}.parquet"
        columns, metadata = read_table(table, SPANS, version=VERSION)
        counts.update(metadata["counts"])
        shards[name] = sha256_of_file(table)
        videos += len(set(columns["video_id"]))
        total += len(columns["video_id"])
        seconds += covered_seconds(zip(*columns.values(), strict=True))
    if not total and counts:
        found = ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items()))
        raise ValueError(
            f"no caption at all was kept, so there is nothing to learn from: {found};"
            " config/README.md shows the forms that captions may have"
        )
    return CaptionSummary(
        shards=shards, counts=dict(counts), videos=videos, captions=total,
        hours=round(seconds / 3600, 6),
    )  # fmt: skip


def covered_seconds(spans: Iterator[tuple[str, float, float]]) -> float:
    """Time covered by (video, start, end) spans sorted by video and start, overlaps once."""
    covered, current, reached = 0.0, None, 0.0
    for video_id, start, end in spans:
        if video_id != current:
            current, reached = video_id, 0.0
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = CommandLine(
        prog="python -m pipeline.captions",
        description="A shard's caption files go in; one clean caption table comes out."
        " With --summarize: the tables of all shards go in, their totals come out.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--plan", type=Path, help="the shard's list of caption sources")
    what.add_argument("--summarize", type=Path, metavar="PLAN", help="the folder of the plan")
    parser.add_argument("--settings", type=Path, help="frozen section `captions` (with --plan)")
    parser.add_argument("--captions", type=Path, help="folder of tables (with --summarize)")
    parser.add_argument("--output", type=Path, required=True, help="table or summary to write")
    arguments = parser.parse_args(argv)
    if arguments.plan and arguments.settings:
        settings = read_settings(CaptionsSettings, arguments.settings)
        counts = clean_shard(arguments.plan, settings, arguments.output)
        words = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
        logger.info("captions: %s", words or "none for the videos of this shard")
    elif arguments.summarize and arguments.captions:
        summary = summarize(arguments.summarize, arguments.captions)
        write_caption_summary(arguments.output, summary)
    else:
        parser.error("--plan needs --settings, and --summarize needs --captions")


if __name__ == "__main__":
    run(main)
