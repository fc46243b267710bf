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

import csv
import io
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from pipeline.cli import run
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import whole_file
from pipeline.formats.names import IdFinder
from pipeline.formats.video_folder import find_videos, find_videos_of_captions
from pipeline.formats.videos import read_videos, table_delimiter

logger = logging.getLogger(__name__)


def extend_table(output: Path, paths: dict[str, str]) -> tuple[int, int]:
    """Append the videos that `output` does not have yet; return (rows kept, rows appended).

    The rows there stay byte for byte, columns of the user's own included.
    """
    kept = {entry.video_id for entry in read_videos(output)} if output.exists() else set()
    find = IdFinder(kept)
    new = [(video_id, path) for video_id, path in paths.items() if find(video_id) is None]
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
    parser = CommandLine(
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
