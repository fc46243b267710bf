"""The order of video ids that the last plan saw: a shard is a slice of it, so it must not move."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pipeline.formats.files import read_text_file, write_text

HEADER = "#bagpipe-order-2"
_FIRST_LINE = re.compile(rf"{HEADER}\t([1-9][0-9]{{0,8}})")


@dataclass(frozen=True, slots=True)
class Order:
    """What cuts a videos table into shards."""

    video_ids: list[str]
    """Of all rows, in order."""
    videos_per_shard: int


def write_order(path: str | Path, order: Order) -> None:
    """Write the ids in table order, one on a line."""
    first = f"{HEADER}\t{order.videos_per_shard}"
    write_text(path, "".join(f"{line}\n" for line in [first, *order.video_ids]))


def read_order(path: str | Path) -> Order:
    """Read the order of the last plan; a foreign file raises `ValueError`."""
    lines = read_text_file(path).split("\n")
    first = _FIRST_LINE.fullmatch(lines[0])
    if first is None or lines[-1] != "":
        raise ValueError(f"{path} is not a whole {HEADER[1:]} file: remove it and plan again")
    return Order(lines[1:-1], int(first[1]))


def check_order(path: Path, order: Order, *, table: str, allow_reorder: bool) -> None:
    """Refuse an order that would move videos of the one in the file at `path`, if there is one.

    Raises:
        ValueError: shards have another size, or a row moved or is gone; the message names the first
            that differs.
    """
    if allow_reorder or not path.exists():
        return
    before = read_order(path)
    if order.video_ids and not set(before.video_ids) & set(order.video_ids):
        raise ValueError(
            f"{table}: none of its videos is among those that {path.parent.parent} was made from,"
            f" as {before.video_ids[0]!r}: work in a folder of its own (`snakemake --directory"
            " DIR`), move the old results away, or replace them with run.allow_reorder: true"
            " (--allow-reorder)"
        )
    if before.videos_per_shard != order.videos_per_shard:
        raise ValueError(
            f"plan.videos_per_shard is {order.videos_per_shard} and was {before.videos_per_shard}:"
            " other shards would hold the videos, which would all be encoded again. Set it back, or"
            " accept that once with run.allow_reorder: true (--allow-reorder)"
        )
    pairs = zip_longest(before.video_ids, order.video_ids)
    for row, (old, new) in enumerate(pairs, start=1):
        if old is None or old == new:
            continue
        now = "is gone" if new is None else f"is now {new!r}"
        raise ValueError(
            f"{table}: row {row} was {old!r} and {now}; rows may only be appended, and a video is"
            " removed by emptying its path. Put the row back, or accept new shards for all videos"
            " once with run.allow_reorder: true (--allow-reorder)"
        )
