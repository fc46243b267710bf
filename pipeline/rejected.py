"""List every video that has no features, and why: the blacklist that a person reads.

Reads   the plan folder (which shards there are), their manifests, and the indexes of their features
Writes  a CSV of video_id, path, stage (`manifest` or `encode`), reason and message
Run     python -m pipeline.rejected --plan results/plan --manifests results/manifest
        --shards results/shards --output results/rejected.csv
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.cli import run
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import write_csv
from pipeline.formats.manifest import ManifestRow, read_manifest
from pipeline.formats.names import again
from pipeline.formats.shard import read_index

HEADER = ["video_id", "path", "stage", "reason", "message"]

logger = logging.getLogger(__name__)


def rejected_rows(plan: Path, manifests: Path, shards: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each video without features, by shard and then as planned.

    Raises:
        FileNotFoundError: a shard of the plan has no manifest or no index.
        ValueError: a file is damaged, or an index and a manifest list other videos.
    """
    for name in sorted(path.stem for path in plan.glob("*.tsv")):
        manifest_path, index_path = manifests / f"{name}.parquet", shards / f"{name}.parquet"
        for path, rule in ((manifest_path, "manifest"), (index_path, "encode")):
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing: run the rule {rule}")
        manifest, index = read_manifest(manifest_path), read_index(index_path).rows
        if [row.video_id for row in manifest] != [row.video_id for row in index]:
            raise ValueError(
                f"{index_path} lists other videos than {manifest_path}: {again(index_path)}"
            )
        for row, found in zip(manifest, index, strict=True):
            if not row.accepted:
                yield _row(row, "manifest", row.reason, row.error_message)
            elif not found.encoded:
                yield _row(row, "encode", found.reason, found.error_message)


def _row(row: ManifestRow, stage: str, reason: str, message: str) -> tuple[str, ...]:
    return row.video_id, row.path, stage, reason, message


def main(argv: list[str] | None = None) -> None:
    """Write the list of rejected videos."""
    parser = CommandLine(
        prog="python -m pipeline.rejected",
        description="Manifests and indexes in, one list of all videos without features out.",
    )
    parser.add_argument("--plan", type=Path, required=True, help="the folder of shard lists")
    parser.add_argument("--manifests", type=Path, required=True, help="the folder of manifests")
    parser.add_argument("--shards", type=Path, required=True, help="the folder of tars and indexes")
    parser.add_argument("--output", type=Path, required=True, help="the CSV to write")
    options = parser.parse_args(argv)
    rows = list(rejected_rows(options.plan, options.manifests, options.shards))
    write_csv(options.output, HEADER, rows)
    counts = Counter(reason for _, _, _, reason, _ in rows)
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    logger.info("%d videos without features%s", len(rows), f": {listed}" if rows else "")


if __name__ == "__main__":
    run(main)
