"""Make the videos table, or extend it: what is in it keeps its row, what is new is appended.

Reads   the video files under --root; with --captions, the ids of a captions source; and the table
        itself where it exists
Writes  the videos table, a CSV of video_id,path
Run     python -m pipeline.tools.catalog --root videos/ --output videos.csv
        python -m pipeline.tools.catalog --captions captions.csv --root videos/ --output videos.csv

The id of a video is its file's name without the suffix. With --captions, the ids are those of the
captions, also those without a file: they get the path where one is expected, and the manifest
rejects them as `missing` until it is there. Rows of videos that vanished stay, because a shard is a
slice of the table; to remove a video, empty its path.
"""

from __future__ import annotations

import argparse
import csv
import io
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.cli import run
from pipeline.formats.caption_sources import iterate_caption_ids
from pipeline.formats.files import whole_file
from pipeline.formats.names import sample_key
from pipeline.formats.videos import read_videos, table_delimiter

logger = logging.getLogger(__name__)

VIDEO_SUFFIXES = frozenset({
    ".3g2", ".3gp", ".asf", ".avi", ".f4v", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4",
    ".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv",
})  # fmt: skip


def find_videos(root: Path) -> dict[str, str]:
    """Video id to path of the video files under `root`, sorted by path; hidden ones do not count.

    Raises:
        FileNotFoundError: `root` is no folder.
        ValueError: two files would have the same id.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"--root {root} is not a folder")
    found: dict[str, str] = {}
    for path in sorted(_video_paths(root)):
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
    paths = {}
    for video_id in iterate_caption_ids(captions):
        if _fits_a_table(video_id):
            paths[video_id] = found.get(video_id) or _expected_path(root, video_id)
        else:
            logger.warning("left out, a table cannot hold its id: %r", video_id)
    return paths


def _expected_path(root: Path, video_id: str) -> str:
    """Where a downloader would put the file; an id with a slash must not leave `root`."""
    name = sample_key(video_id) if "/" in video_id or "\\" in video_id else video_id
    return os.path.join(root, f"{name}.mp4")


def extend_table(output: Path, paths: dict[str, str]) -> tuple[int, int]:
    """Append the videos that `output` does not have yet; return (rows kept, rows appended).

    The rows there stay byte for byte, columns of the user's own included.
    """
    kept = {entry.video_id for entry in read_videos(output)} if output.exists() else set()
    new = [(video_id, path) for video_id, path in paths.items() if video_id not in kept]
    if not kept and not new:
        raise ValueError(f"no video found, so {output} was not written")
    before = output.read_bytes() if output.exists() else b"video_id,path\n"
    if not before.endswith(b"\n"):
        before += b"\n"
    with whole_file(output) as scratch:
        scratch.write_bytes(before + _rows(before, new).encode("utf-8"))
    return len(kept), len(new)


def _rows(before: bytes, new: Iterable[tuple[str, str]]) -> str:
    """CSV lines for `new` under the header that `before` begins with."""
    first_line = before.split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r")
    delimiter = table_delimiter(first_line)
    header = next(csv.reader([first_line], delimiter=delimiter))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, restval="", delimiter=delimiter, lineterminator="\n")
    writer.writerows({"video_id": video_id, "path": path} for video_id, path in new)
    return text.getvalue()


def main(argv: list[str] | None = None) -> None:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.tools.catalog",
        description="A folder of videos, or the ids of captions, goes in; the videos table comes"
        " out, extended if it exists.",
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of the video files")
    parser.add_argument("--captions", help="take the ids of this folder, table or JSON file")
    parser.add_argument("--output", type=Path, required=True, help="the videos table (CSV)")
    arguments = parser.parse_args(argv)
    if arguments.output.suffix == ".parquet":
        raise ValueError(f"{arguments.output}: the catalog writes CSV; name a .csv file")
    if arguments.captions:
        paths = find_videos_of_captions(arguments.captions, arguments.root)
    else:
        paths = find_videos(arguments.root)
    kept, appended = extend_table(arguments.output, paths)
    missing = sum(not os.path.exists(path) for path in paths.values())
    logger.info(
        "%s: %d rows kept, %d appended; %d videos found, %d ids without a file",
        arguments.output, kept, appended, len(paths) - missing, missing,
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
