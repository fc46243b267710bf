"""A folder of caption files: which file belongs to which video.

Names are `{video_id}.{suffix}` or, as downloaders write them, `{video_id}.{language}.{suffix}`; the
video's own suffix may stand behind its id, as in `{video_id}.mp4.srt`. The id may stand
percent-encoded, as it does in the shards, when it holds what a file name cannot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.formats.names import IdFinder, sample_key
from pipeline.formats.videos import VIDEO_SUFFIXES

SUFFIXES = (".vtt", ".srt", ".json", ".sjson", ".csv", ".tsv")
"""In order of preference when a video has several files: first those whose times carry their unit,
last those that differ by program (whisper's .tsv counts milliseconds)."""
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*(-orig)?(-[A-Za-z0-9_-]{11})?")
"""Behind it may stand the 11 characters by which YouTube tells several tracks of one language."""


@dataclass(frozen=True, slots=True)
class CaptionFile:
    """One file of the folder, as the listing shows it."""

    path: str
    meanings: tuple[tuple[str, str], ...]
    """The (id, language) that its name may mean: first as it stands, last without all that may
    stand behind an id."""
    suffix: str

    @property
    def likely_id(self) -> str:
        """The id, where no table of videos says which one it is."""
        return self.meanings[-1][0]


def list_caption_files(folder: str | Path) -> list[CaptionFile]:
    """The caption files right inside `folder`, by name; other files are left alone."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    return [file for file in map(_described, [folder] * len(names), names) if file is not None]


def match_caption_files(
    files: Iterable[CaptionFile], video_ids: Iterable[str]
) -> tuple[dict[str, list[CaptionFile]], list[CaptionFile]]:
    """Video id to its caption files, the preferred one first; and the files of no video.

    Preferred are names without a language, then English, then other languages by name; among these
    the order of `SUFFIXES`, then a name that is the very id before one in another Unicode form.
    """
    ids = list(video_ids)
    known = {sample_key(video_id): video_id for video_id in ids}
    known.update(zip(ids, ids, strict=True))  # an id as it stands comes before one encoded
    find = IdFinder(known)
    found: dict[str, list[tuple[tuple, CaptionFile]]] = {}
    strays = []
    for file in files:
        for name, language in file.meanings:
            if (key := find(name)) is not None:
                rank = (*_preference(language, file.suffix), name != key, file.path)
                found.setdefault(known[key], []).append((rank, file))
                break
        else:
            strays.append(file)
    matched = {
        video_id: [file for _, file in sorted(ranked, key=lambda pair: pair[0])]
        for video_id, ranked in found.items()
    }
    return matched, strays


def iterate_file_ids(folder: str | Path) -> Iterator[str]:
    """The video ids that the names of a folder's caption files speak of, each once, sorted."""
    yield from sorted({file.likely_id for file in list_caption_files(folder)})


def _described(folder: str | Path, name: str) -> CaptionFile | None:
    stem, suffix = os.path.splitext(name)
    suffix = suffix.lower()
    if suffix not in SUFFIXES or name.startswith("."):
        return None
    if suffix == ".sjson":
        stem = stem.removesuffix(".srt")
    return CaptionFile(os.path.join(folder, name), tuple(_meanings(stem)), suffix)


def _meanings(stem: str) -> Iterator[tuple[str, str]]:
    base, _, language = stem.rpartition(".")
    names = [(stem, "")]
    if base and _LANGUAGE.fullmatch(language):
        names.append((base, language.lower()))
    for name, language in names:
        yield name, language
        video_id, suffix = os.path.splitext(name)
        if suffix.lower() in VIDEO_SUFFIXES:
            yield video_id, language


def _preference(language: str, suffix: str) -> tuple[int, str, int]:
    order = 0 if not language else 1 if language.split("-")[0] == "en" else 2
    return order, language, SUFFIXES.index(suffix)
