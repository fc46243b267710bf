"""One table or JSON file with the captions of all videos, split into a part for each shard.

Parts are named by the sha256 of their bytes, so an unchanged part keeps its name and the shard's
list of caption sources keeps its bytes. The source is streamed once and never held: rows gather in
a buffer and are appended to a scratch file for each shard. What was split is remembered beside the
parts; while the source and the assignment of ids to shards stay the same, nothing is read again.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline.formats.caption_sources import HEADER, iterate_captions
from pipeline.formats.files import (
    digest_of,
    naming,
    read_json,
    sha256_of_file,
    with_line_feeds,
    write_json,
)
from pipeline.formats.names import IdFinder
from pipeline.formats.plan import PlannedCaptions, Unmatched

VERSION = "captions-parts-3"
MEMORY_FILE = "source.json"
REMOVED = -1
"""The shard of a video whose path is empty: its captions are left out and not missed."""
NAMED = 3
"""So many of what does not fit are named."""
_BUFFERED_ROWS = 250_000
_KEEPING_THREADS = 16
_PART_NAME = re.compile(r"[0-9a-f]{64}\.csv")


@dataclass(slots=True, kw_only=True)
class Split:
    """What a captions source was split into."""

    parts: dict[str, list] = field(default_factory=dict)
    """Shard index as text to [sha256, bytes]; shards without captions have none."""
    videos: int = 0
    """Videos that have captions."""
    rows: int = 0
    """Captions of these videos."""
    foreign_rows: int = 0
    """Captions of ids that no video has; they are left out."""
    foreign_ids: list[str] = field(default_factory=list)
    """The first such ids."""
    silent_videos: int = 0
    """Videos without captions."""
    silent_ids: list[str] = field(default_factory=list)
    """The first of these."""

    @property
    def unmatched(self) -> Unmatched:
        """What does not belong together."""
        return Unmatched(
            unit="captions",
            captions=self.foreign_rows,
            caption_names=self.foreign_ids,
            videos=self.silent_videos,
            video_ids=self.silent_ids,
        )

    def sources(self, folder: Path, shard: int) -> list[PlannedCaptions]:
        """The caption sources of one shard: its part, if it has one."""
        if str(shard) not in self.parts:
            return []
        digest, size = self.parts[str(shard)]
        return [PlannedCaptions("", str(folder / f"{digest}.csv"), size, digest)]


def split_captions(source: str | Path, shard_of: dict[str, int], folder: Path) -> Split:
    """Split `source` by `shard_of` (video id to shard index, or REMOVED) into parts in `folder`.

    Raises:
        ValueError: the source is no table or JSON of captions.
    """
    identity = _identity(source, shard_of)
    remembered = _remembered(folder, identity)
    if remembered is not None:
        return remembered
    scratch = folder / ".split"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        split = _scatter(source, shard_of, scratch)
        paths = sorted(scratch.iterdir())
        with ThreadPoolExecutor(_KEEPING_THREADS) as pool:  # most of it is waiting for the disk
            kept = pool.map(lambda path: _keep(path, folder), paths)
            split.parts = {path.stem: part for path, part in zip(paths, kept, strict=True)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write_json(folder / MEMORY_FILE, {"identity": identity, **asdict(split)})
    return split


def remove_other_parts(folder: Path, split: Split | None) -> None:
    """Remove parts that `split` does not name (None: all of them, and what was remembered)."""
    if not folder.is_dir():
        return
    named = {f"{digest}.csv" for digest, _ in split.parts.values()} if split else set()
    for path in folder.iterdir():
        stale = _PART_NAME.fullmatch(path.name) and path.name not in named
        if stale or (split is None and path.name == MEMORY_FILE):
            path.unlink()


def _identity(source: str | Path, shard_of: dict[str, int]) -> str:
    stat = os.stat(source)
    return digest_of([VERSION, str(source), stat.st_size, stat.st_mtime_ns, list(shard_of.items())])


def _remembered(folder: Path, identity: str) -> Split | None:
    """The split of the last plan, if it was of the same things and its parts are still there."""
    memory = folder / MEMORY_FILE
    if not memory.exists():
        return None
    try:
        value = read_json(memory)
        if value.pop("identity") != identity:
            return None
        split = Split(**value)
        sizes = [(folder / f"{d}.csv").stat().st_size == n for d, n in split.parts.values()]
    except (ValueError, TypeError, KeyError, AttributeError, FileNotFoundError):
        return None
    return split if all(sizes) else None


def _scatter(source: str | Path, shard_of: dict[str, int], scratch: Path) -> Split:
    """Append each row of the source to its shard's scratch file, in source order."""
    split = Split()
    seen: set[str] = set()
    buffers: dict[int, list] = {}
    buffered = 0
    find = IdFinder(shard_of)
    for row in iterate_captions(source):
        video_id = find(row.video_id)
        if video_id is None:
            split.foreign_rows += 1
            if len(split.foreign_ids) < NAMED and row.video_id not in split.foreign_ids:
                split.foreign_ids.append(row.video_id)
            continue
        if (shard := shard_of[video_id]) == REMOVED:
            continue
        if video_id != row.video_id:
            row = row._replace(video_id=video_id)
        split.rows += 1
        seen.add(video_id)
        buffers.setdefault(shard, []).append(row)
        buffered += 1
        if buffered >= _BUFFERED_ROWS:
            _flush(buffers, scratch)
            buffered = 0
    _flush(buffers, scratch)
    silent = [i for i, shard in shard_of.items() if shard != REMOVED and i not in seen]
    split.videos, split.silent_videos, split.silent_ids = len(seen), len(silent), silent[:NAMED]
    return split


def _flush(buffers: dict[int, list], scratch: Path) -> None:
    """Write out and empty the buffers; a missing value becomes an empty field."""
    for shard, rows in buffers.items():
        _append(scratch / f"{shard}.csv", rows)
    buffers.clear()


def _append(path: Path, rows: list[tuple]) -> None:
    text = _table_text(rows)
    if "\r" in text:  # looked for once, for it is rare and rows are many
        text = _table_text(map(with_line_feeds, rows))
    # `replace`: broken JSON can hold half a surrogate pair, which no file can.
    with naming(path), open(path, "a", newline="", encoding="utf-8", errors="replace") as file:
        if file.tell() == 0:
            file.write(_table_text([HEADER]))
        file.write(text)


def _table_text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _keep(path: Path, folder: Path) -> list:
    """Give a finished scratch file its lasting name; return [sha256, bytes].

    A part that is there already is left as it is.
    """
    digest, size = sha256_of_file(path), path.stat().st_size
    part = folder / f"{digest}.csv"
    if part.exists() and part.stat().st_size == size:
        path.unlink()
        return [digest, size]
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    os.replace(path, part)
    return [digest, size]
