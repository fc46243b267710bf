"""A folder of caption files: which file belongs to which video.

Names are `{video_id}.{suffix}` or, as downloaders write them, `{video_id}.{language}.{suffix}`; the
id may stand percent-encoded, as it does in the shards, when it holds what a file name cannot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.formats.names import sample_key

SUFFIXES = (".csv", ".tsv", ".vtt", ".srt", ".json", ".sjson")
"""In order of preference when a video has several files."""
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*(-orig)?")


@dataclass(frozen=True, slots=True)
class CaptionFile:
    """One file of the folder, as the listing shows it."""

    path: str
    names: tuple[str, ...]
    """The ids that its name may mean: as it stands, then without a language."""
    suffix: str


def list_caption_files(folder: str | Path) -> list[CaptionFile]:
    """The caption files right inside `folder`, by name; other files are left alone."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    return [file for file in map(_described, [folder] * len(names), names) if file is not None]


def match_caption_files(
    files: Iterable[CaptionFile], video_ids: Iterable[str]
) -> dict[str, list[CaptionFile]]:
    """Video id to its caption files, the preferred one first.

    Preferred are names without a language, then English, then other languages by name; among these
    the order of `SUFFIXES`.
    """
    ids = list(video_ids)
    known = {sample_key(video_id): video_id for video_id in ids}
    known.update(zip(ids, ids, strict=True))  # an id as it stands comes before one encoded
    found: dict[str, list[tuple[tuple, CaptionFile]]] = {}
    for file in files:
        for name in file.names:
            if name in known:
                rank = _preference(file, name)
                found.setdefault(known[name], []).append((rank, file))
                break
    return {
        video_id: [file for _, file in sorted(ranked, key=lambda pair: pair[0])]
        for video_id, ranked in found.items()
    }


def iterate_file_ids(folder: str | Path) -> Iterator[str]:
    """The video ids that the names of a folder's caption files speak of, each once, sorted."""
    yield from sorted({file.names[-1] for file in list_caption_files(folder)})


def _described(folder: str | Path, name: str) -> CaptionFile | None:
    stem, suffix = os.path.splitext(name)
    suffix = suffix.lower()
    if suffix not in SUFFIXES or name.startswith("."):
        return None
    if suffix == ".sjson":
        stem = stem.removesuffix(".srt")
    base, _, language = stem.rpartition(".")
    bare = (base,) if base and _LANGUAGE.fullmatch(language) else ()
    return CaptionFile(os.path.join(folder, name), (stem, *bare), suffix)


def _preference(file: CaptionFile, name: str) -> tuple:
    language = file.names[0][len(name) :].lstrip(".").lower()
    order = 0 if not language else 1 if language.split("-")[0] == "en" else 2
    return order, language, SUFFIXES.index(file.suffix), file.path
