"""The order of video ids that the last plan saw: a shard is a slice of it, so it must not move."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from pipeline.formats.files import read_text_file, write_text

HEADER = "#bagpipe-order-1"


def write_order(path: str | Path, video_ids: list[str]) -> None:
    """Write the ids in table order, one on a line."""
    write_text(path, "".join(f"{line}\n" for line in [HEADER, *video_ids]))


def read_order(path: str | Path) -> list[str]:
    """Read the ids in order; a foreign file raises `ValueError`."""
    lines = read_text_file(path).split("\n")
    if lines[0] != HEADER or lines[-1] != "":
        raise ValueError(f"{path} is not a whole {HEADER[1:]} file: remove it and plan again")
    return lines[1:-1]


def check_order(path: Path, video_ids: list[str], *, table: str, allow_reorder: bool) -> None:
    """Refuse ids that do not begin with those in the file at `path`, which may not exist yet.

    Raises:
        ValueError: a row moved or is gone; the message names the first that differs.
    """
    if allow_reorder or not path.exists():
        return
    before = read_order(path)
    for row, (old, new) in enumerate(zip_longest(before, video_ids), start=1):
        if old is None or old == new:
            continue
        now = "is gone" if new is None else f"is now {new!r}"
        raise ValueError(
            f"{table}: row {row} was {old!r} and {now}; rows may only be appended, and a video is"
            " removed by emptying its path. Put the row back, or accept new shards for all videos"
            " once with run.allow_reorder: true (--allow-reorder)"
        )
