"""A folder of video files: which file is which video, by its name without the suffix."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.formats.caption_sources import iterate_caption_ids
from pipeline.formats.names import IdFinder, sample_key
from pipeline.formats.videos import VIDEO_SUFFIXES

logger = logging.getLogger(__name__)

_PART = re.compile(r"(.+)\.(f\d+(-\w+)?|temp)", re.DOTALL)
"""What yt-dlp calls the streams that it joins, and the file into which it joins them."""


def find_videos(root: Path) -> dict[str, str]:
    """Video id to path of the video files under `root`, sorted by path; hidden ones do not count.

    Parts of a download beside its finished file are left out.

    Raises:
        FileNotFoundError: `root` is no folder.
        ValueError: two files would have the same id.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder: name that of the videos")
    found: dict[str, str] = {}
    for path in _without_parts(sorted(_video_paths(root))):
        video_id = os.path.splitext(os.path.basename(path))[0]
        if video_id in found:
            raise ValueError(
                f"{found[video_id]} and {path} would both be video {video_id!r}; ids are unique:"
                " rename or move one of them"
            )
        found[video_id] = path
    return found


def _video_paths(root: Path) -> Iterator[str]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") or os.path.splitext(name)[1].lower() not in VIDEO_SUFFIXES:
                continue
            path = os.path.join(folder, name)
            if _fits_a_table(path):
                yield path
            else:
                logger.warning("left out, a table cannot hold its name: %r", path)


def _without_parts(paths: list[str]) -> list[str]:
    stems = {path: os.path.splitext(path)[0] for path in paths}
    finished = set(stems.values())
    found = {path: _PART.fullmatch(stem) for path, stem in stems.items()}
    parts = [path for path, part in found.items() if part and part[1] in finished]
    if parts:
        logger.warning(
            "left out, as parts of a download beside its finished file: %d files, as %s",
            len(parts), parts[0],
        )  # fmt: skip
    return sorted({*paths}.difference(parts))


def _fits_a_table(text: str) -> bool:
    """Whether the videos table can hold `text`: UTF-8, and no tab, line end or NUL in it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return not any(character in text for character in "\t\r\n\0")


def find_videos_of_captions(captions: str, root: Path) -> dict[str, str]:
    """Video id to path for the ids of a captions source; without a file, where it is expected."""
    found = find_videos(root)
    find = IdFinder(found)
    paths = {}
    for video_id in iterate_caption_ids(captions):
        if _fits_a_table(video_id):
            named = find(video_id)
            paths[video_id] = found[named] if named else _expected_path(root, video_id)
        else:
            logger.warning("left out, a table cannot hold its id: %r", video_id)
    return paths


def _expected_path(root: Path, video_id: str) -> str:
    """Where a downloader would put the file; an id with a slash must not leave `root`."""
    name = sample_key(video_id) if "/" in video_id or "\\" in video_id else video_id
    return os.path.join(root, f"{name}.mp4")
