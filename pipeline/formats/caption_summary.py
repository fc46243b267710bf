"""The summary of all captions: totals, and a digest of each shard's table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pipeline.formats.files import read_json, write_json
from pipeline.formats.names import again

VERSION = "captions-summary-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionSummary:
    """Totals over the caption tables of a plan's shards."""

    shards: dict[str, str]
    """Shard name to the sha256 of its caption table."""
    counts: dict[str, int]
    """What was read, kept, mended and dropped, by reason."""
    videos: int
    """Videos with at least one caption."""
    captions: int
    """Captions that were kept."""
    hours: float
    """Time that captions cover, overlaps counted once."""


def write_caption_summary(path: str | Path, summary: CaptionSummary) -> None:
    """Write the summary as JSON."""
    write_json(path, {"version": VERSION, **asdict(summary)})


def read_caption_summary(path: str | Path) -> CaptionSummary:
    """Read the summary; a foreign file raises `ValueError`."""
    value = read_json(path)
    if not isinstance(value, dict) or value.pop("version", None) != VERSION:
        raise ValueError(f"{path} is not a {VERSION} file: {again('captions_summary')}")
    if value.keys() != {field.name for field in fields(CaptionSummary)}:
        raise ValueError(f"{path} is not a whole {VERSION} file: {again('captions_summary')}")
    return CaptionSummary(**value)
