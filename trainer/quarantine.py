"""What training leaves out because it cannot be read: found, agreed on by all ranks, listed.

Reads   sizes and indexes of the shards, on demand all their bytes
Writes  quarantine.json beside the run's folder, once this run holds that folder

The order of videos is not touched: a clip that is left out leaves its place in its step empty. A
mended shard therefore takes its place again, and neither changes which videos a step visits.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pipeline.formats.bags import TRAIN
from pipeline.formats.files import read_json, sha256_of_file, write_json
from pipeline.formats.names import again
from pipeline.formats.shard import read_index, read_index_facts, read_video
from trainer.bag_index import BagIndex, ShardFiles
from trainer.batch import Unreadable, collate
from trainer.distributed import World

logger = logging.getLogger(__name__)

_TOLD_VIDEOS = 20
"""Unreadable videos that are named in the log; quarantine.json names all."""


@dataclass(frozen=True, slots=True)
class BadShard:
    """A shard that no clip is read from."""

    number: int
    """Of the shard in the index."""
    path: str
    reason: str
    command: str
    """That makes it again."""


class Quarantine:
    """What this run leaves out; the same on all ranks at every step."""

    def __init__(
        self, path: Path, index: BagIndex, shards: list[BadShard], *, min_clips: int, speaks: bool
    ) -> None:
        self.shards = shards
        self._path, self._index, self._speaks, self._min_clips = path, index, speaks, min_clips
        self._videos: dict[int, dict] = {}
        counts_S = index.clips_of_shards(TRAIN)
        self._all = int(counts_S.sum())
        self._lost = int(counts_S[[shard.number for shard in shards]].sum()) if shards else 0

    @property
    def bad(self) -> frozenset[int]:
        """Numbers of the shards that are left out."""
        return frozenset(shard.number for shard in self.shards)

    def begin(self, world: World) -> None:
        """Name the bad shards and list them, with the videos that the start before left out.

        Call on all ranks, and not before the run holds its folder: another run may be writing its
        own list.

        Raises:
            ValueError: too few clips are left.
        """
        own = world.agree(self._remembered, doing="reading what was left out")
        told = json.loads(world.gather_texts(json.dumps(own))[0])
        self._videos = {int(video): entry for video, entry in told.items()}
        self._lost += sum(entry["clips"] for entry in self._videos.values())
        world.agree(self._list, doing="listing what is left out")

    def _list(self) -> None:
        if self._speaks:
            for shard in self.shards:
                logger.warning(
                    "left out: %s %s; %s (rule encode)", shard.path, shard.reason, shard.command
                )
            if self._videos:
                logger.warning(
                    "%d videos of %s still cannot be read", len(self._videos), self._path
                )
            self._write()
        self._check()

    def _remembered(self) -> dict[int, dict]:
        """The videos of the list that is there which still cannot be read; rank 0 looks."""
        if not (self._speaks and self._path.exists()):
            return {}
        found = {}
        try:
            for old in read_json(self._path)["videos"]:
                video = self._index.video_of(old["shard"], old["key"])
                if video is None or not self._index.good(np.array([video]))[0]:
                    continue
                first, count = self._index.clips_of(video)
                for fault in collate(self._index, first + np.arange(count), 0, 0).unreadable:
                    found[video] = self._entry(asdict(fault), old["rank"], old["step"])
        except (ValueError, LookupError, TypeError) as error:
            logger.warning("%s is not what a run writes (%r): it begins anew", self._path, error)
        return found

    def add(self, world: World, step: int, unreadable: tuple[Unreadable, ...]) -> None:
        """Share the videos that some rank could not read; call on all ranks of a step alike.

        Raises:
            ValueError: too few clips are left.
        """
        own = json.dumps([asdict(video) for video in unreadable])
        news = []
        for rank, text in enumerate(world.gather_texts(own)):
            for found in json.loads(text):
                if found["video"] not in self._videos:
                    news.append(self._entry(found, rank, step))
                    self._videos[found["video"]] = news[-1]
        self._lost += sum(entry["clips"] for entry in news)
        if self._speaks and news:
            for entry in news[: max(0, _TOLD_VIDEOS - len(self._videos) + len(news))]:
                logger.warning(
                    "step %d: video %s is left out, rank %d cannot read it: %s",
                    step, entry["key"], entry["rank"], entry["reason"],
                )  # fmt: skip
            self._write()
        self._check()

    def _entry(self, found: dict, rank: int, step: int) -> dict:
        shard, key = self._index.key_of(found["video"])
        _, clips = self._index.clips_of(found["video"])
        return {
            "key": key, "shard": str(self._index.shards[shard].tar), "clips": clips,
            "reason": found["reason"], "rank": rank, "step": step,
        }  # fmt: skip

    def _write(self) -> None:
        content = {
            "shards": [
                {"path": s.path, "reason": s.reason, "command": s.command} for s in self.shards
            ],
            "videos": list(self._videos.values()),
            "train_clips": self._all,
            "train_clips_left_out": self._lost,
        }
        write_json(self._path, content)

    def _check(self) -> None:
        left = self._all - self._lost
        if self._lost and left < self._min_clips:
            first = self.shards[0] if self.shards else None
            why = f"first {first.path} {first.reason}; {first.command}" if first else ""
            why = why or "first " + next(iter(self._videos.values()))["reason"]
            raise ValueError(
                f"{left} of {self._all} training clips are left, train.min_clips is"
                f" {self._min_clips}: mend what {self._path} lists, {why}"
            )


def find_bad_shards(index: BagIndex, world: World, *, hash_all: bool) -> list[BadShard]:
    """The bad shards, the same list on every rank; each rank looks at its share of the files."""
    own = range(world.rank, len(index.shards), world.size)
    found = world.agree(lambda: examine(index, own, hash_all=hash_all), doing="checking shards")
    texts = world.gather_texts(json.dumps([asdict(shard) for shard in found]))
    shards = [BadShard(**values) for text in texts for values in json.loads(text)]
    return sorted(shards, key=lambda shard: shard.number)


def examine(index: BagIndex, numbers: range, *, hash_all: bool) -> list[BadShard]:
    """The bad ones among some shards: missing, short, of other bytes, of another recipe."""
    usual = {key: usual_value(index, key) for key in ("recipe_identity", "vocabulary_sha256")}
    bad = []
    for number in numbers:
        files, bags = index.shards[number], index.bags[number]
        if not bags.num_clips:
            continue
        fault = _foreign(bags.metadata, usual)
        if fault is None and (reason := _damage(files, bags.metadata, hash_all=hash_all)):
            fault = reason, str(files.tar)
        if fault is not None:
            bad.append(BadShard(number, str(files.tar), fault[0], again(fault[1])))
    return bad


def usual_value(index: BagIndex, key: str) -> str:
    """What most bag files with clips say of a key; of equally many, what the first says."""
    values = [bags.metadata[key] for bags in index.bags if bags.num_clips]
    return Counter(values).most_common(1)[0][0] if values else ""


def _foreign(metadata: dict, usual: dict[str, str]) -> tuple[str, str] | None:
    """Why a bag file does not belong to the others, and what to run again."""
    for key, stage in (("recipe_identity", "encode"), ("vocabulary_sha256", "bags")):
        if metadata[key] != usual[key]:
            return f"has another {key} than most ({metadata[key]}, not {usual[key]})", stage
    return None


def _damage(files: ShardFiles, metadata: dict, *, hash_all: bool) -> str | None:
    """What is wrong with a shard's tar and index, as its bag file knows them."""
    index = files.tar.with_suffix(".parquet")
    for path in (files.tar, index):
        if not path.exists():
            return "is missing" if path == files.tar else f"has no index {path.name} beside it"
    size, expected = files.tar.stat().st_size, metadata["tar_bytes"]
    if size != expected:
        return f"has {size} bytes, not {expected}"
    try:
        facts = read_index_facts(index)
    except ValueError as error:
        return f"has a bad index: {error}"
    for key in ("recipe_identity", "tar_sha256"):
        if facts[key] != metadata[key]:
            return f"has an index of another {key} than its bag file"
    if hash_all and sha256_of_file(files.tar) != metadata["tar_sha256"]:
        return "has other bytes than when it was written"
    return None if hash_all else _damage_in_sample(files.tar, index)


def _damage_in_sample(tar: Path, index: Path) -> str | None:
    """What is wrong with the first, the middle and the last video of a shard, read whole."""
    try:
        rows = [row for row in read_index(index).rows if row.encoded]
        with open(tar, "rb") as file:
            for row in [rows[0], rows[len(rows) // 2], rows[-1]] if rows else []:
                read_video(file.fileno(), row)
    except (ValueError, OSError) as error:
        return f"cannot be trusted: {error}"
    return None
