"""Check the videos of one shard with ffprobe: one row for each, accepted or rejected with a reason.

Reads the shard's plan and the section `manifest` of the settings; writes the shard's manifest.

    python -m pipeline.manifest --plan results/plan/00000.tsv --workers 4 \
        --settings results/settings/manifest.json --output results/manifest/00000.parquet
"""

from __future__ import annotations

import logging

from pipeline.cli import run
from pipeline.formats.command_line import CommandLine
from pipeline.formats.manifest import write_manifest
from pipeline.formats.plan import read_planned_videos
from pipeline.formats.settings import read_settings
from pipeline.inspection import inspect_all, summary
from pipeline.probe import find_ffprobe
from pipeline.settings import ManifestSettings

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> None:
    """Run the stage."""
    parser = CommandLine(
        prog="python -m pipeline.manifest",
        description="Plan of a shard in; its manifest out: what ffprobe says of each video.",
    )
    parser.add_argument("--plan", required=True, help="results/plan/{shard}.tsv")
    parser.add_argument("--settings", required=True, help="results/settings/manifest.json")
    parser.add_argument("--output", required=True, help="results/manifest/{shard}.parquet")
    parser.add_argument("--workers", type=int, default=4, help="ffprobe processes at a time")
    arguments = parser.parse_args(argv)
    if arguments.workers < 1:
        raise ValueError(f"--workers is {arguments.workers}, must be at least 1")
    settings = read_settings(ManifestSettings, arguments.settings)
    videos = read_planned_videos(arguments.plan)
    rows = inspect_all(videos, settings=settings, ffprobe=find_ffprobe(), workers=arguments.workers)
    write_manifest(arguments.output, rows)
    logger.info("%s", summary(rows))


if __name__ == "__main__":
    run(main)
