"""The clean caption table of one shard: timed texts, sorted, with counts of what was mended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.formats.parquet import read_rows, write_table

VERSION = "captions-1"
SCHEMA = {
    "video_id": "string",
    "start_seconds": "float64",
    "end_seconds": "float64",
    "text": "string",
}


@dataclass(frozen=True, slots=True)
class Caption:
    """One timed text of a video, on the caption clock: seconds from the file's start."""

    video_id: str
    start_seconds: float
    end_seconds: float
    text: str


def write_captions(path: str | Path, captions: list[Caption], counts: dict[str, int]) -> None:
    """Write captions sorted by (video_id, start, end, text), and `counts` by reason."""
    ordered = sorted(captions, key=lambda c: (c.video_id, c.start_seconds, c.end_seconds, c.text))
    rows = [asdict(caption) for caption in ordered]
    write_table(path, SCHEMA, rows, version=VERSION, metadata={"counts": counts})


def read_captions(path: str | Path) -> tuple[list[Caption], dict[str, int]]:
    """Read a shard's captions and its counts by reason."""
    rows, metadata = read_rows(path, SCHEMA, version=VERSION)
    return [Caption(**row) for row in rows], metadata["counts"]
