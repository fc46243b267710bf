"""The plan of one shard: `{shard}.tsv` lists its videos, `{shard}.captions` its caption sources.

`unmatched.json` beside them says which captions and videos do not belong together. The lists carry
sizes and modification times (or digests), so that equal bytes mean an unchanged shard: Snakemake
recognises an unchanged list by its checksum and re-runs nothing that hangs on it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pipeline.formats.files import read_json, read_text_file, write_json, write_text
from pipeline.formats.names import again

VIDEOS_HEADER = "#bagpipe-plan-1\tpath\tsplit\tsize_bytes\tmtime_ns"
CAPTIONS_HEADER = "#bagpipe-captions-1\tpath\tsize_bytes\tmtime_ns_or_sha256"
UNMATCHED_FILE = "unmatched.json"
UNMATCHED = "plan-unmatched-1"
_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class PlannedVideo:
    """One video of a shard, as the plan found it."""

    video_id: str
    path: str
    """Empty: removed from the table."""
    split: str
    size_bytes: int
    """-1: there is no such file."""
    mtime_ns: int
    """-1: there is no such file."""


@dataclass(frozen=True, slots=True)
class PlannedCaptions:
    """One caption source of a shard: a video's caption file, or the shard's part of a table."""

    video_id: str
    """Empty: the file is a part of a single table and holds many videos."""
    path: str
    size_bytes: int
    version: str
    """The file's mtime in ns, or for a part the sha256 that also names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """Captions that belong to no video, and videos without captions; removed videos are neither."""

    unit: str
    """What is counted of captions: `caption files`, or of one table `captions`."""
    captions: int
    """Of no video."""
    caption_names: list[str]
    """Up to three of these: names of files, or ids."""
    videos: int
    """Without captions."""
    video_ids: list[str]
    """Up to three of these."""

    def sentences(self) -> list[str]:
        """What a person should hear of it; nothing where all fits."""
        said = []
        if self.captions:
            said.append(
                f"{self.captions:,} {self.unit} belong to no video{_as(self.caption_names)}"
            )
        if self.videos:
            said.append(f"{self.videos:,} videos have no captions{_as(self.video_ids)}")
        return said


def _as(names: list[str]) -> str:
    return f", as {', '.join(map(repr, names))}"


def write_unmatched(folder: str | Path, unmatched: Unmatched) -> None:
    """Write it into the folder of a plan, as JSON."""
    write_json(Path(folder) / UNMATCHED_FILE, {"version": UNMATCHED, **asdict(unmatched)})


def read_unmatched(folder: str | Path) -> Unmatched:
    """Read it from the folder of a plan; a foreign file raises `ValueError`."""
    path = Path(folder) / UNMATCHED_FILE
    value = read_json(path)
    if not isinstance(value, dict) or value.pop("version", None) != UNMATCHED:
        raise ValueError(f"{path} is not a {UNMATCHED} file: {again('plan')}")
    if value.keys() != {field.name for field in fields(Unmatched)}:
        raise ValueError(f"{path} is not a whole {UNMATCHED} file: {again('plan')}")
    return Unmatched(**value)


def write_planned_videos(path: str | Path, videos: list[PlannedVideo]) -> int:
    """Write a shard's list of videos in table order; return its size in bytes."""
    rows = [f"{v.video_id}\t{v.path}\t{v.split}\t{v.size_bytes}\t{v.mtime_ns}" for v in videos]
    return _write_lines(path, VIDEOS_HEADER, rows)


def read_planned_videos(path: str | Path) -> list[PlannedVideo]:
    """Read a shard's list of videos; a foreign file raises `ValueError`."""
    return [
        PlannedVideo(video_id, video_path, split, _whole(path, size), _whole(path, mtime))
        for video_id, video_path, split, size, mtime in _read_lines(path, VIDEOS_HEADER, fields=5)
    ]


def write_planned_captions(path: str | Path, sources: list[PlannedCaptions]) -> int:
    """Write a shard's list of caption sources; return its size in bytes."""
    rows = [f"{s.video_id}\t{s.path}\t{s.size_bytes}\t{s.version}" for s in sources]
    return _write_lines(path, CAPTIONS_HEADER, rows)


def read_planned_captions(path: str | Path) -> list[PlannedCaptions]:
    """Read a shard's list of caption sources; a foreign file raises `ValueError`."""
    return [
        PlannedCaptions(video_id, source, _whole(path, size), version)
        for video_id, source, size, version in _read_lines(path, CAPTIONS_HEADER, fields=4)
    ]


def _whole(path: str | Path, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{path}: {text[:80]!r} is not a whole number: {again('plan')}")
    return int(text)


def _write_lines(path: str | Path, header: str, rows: list[str]) -> int:
    text = "".join(f"{line}\n" for line in [header, *rows])
    write_text(path, text)
    return len(text.encode("utf-8"))


def _read_lines(path: str | Path, header: str, *, fields: int) -> list[list[str]]:
    lines = read_text_file(path).split("\n")
    if lines[0] != header or lines[-1] != "":
        raise ValueError(
            f"{path} is not a whole {header.split(chr(9))[0][1:]} file: {again('plan')}"
        )
    rows = [line.split("\t") for line in lines[1:-1]]
    if any(len(row) != fields for row in rows):
        raise ValueError(f"{path}: every row needs {fields} fields: {again('plan')}")
    return rows
