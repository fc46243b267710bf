"""All bag files of a plan as one table of videos, clips and captions, each with its number.

Letters: B clips, N captions, L token ids of a caption, A captions of a bag, S shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.formats.bags import Bags, read_bags
from pipeline.formats.names import again


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The two files of a shard that training reads."""

    bags: Path
    tar: Path


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What the bag files say of some clips."""

    shard_B: np.ndarray
    video_B: np.ndarray
    """[B] int64: the video's number over all files."""
    start_B: np.ndarray
    stop_B: np.ndarray
    captions_BA: np.ndarray
    """[B, A] int64: captions' numbers over all files, -1 = padding."""
    feature_offset_B: np.ndarray
    """[B] int64: byte of the tar at which the clip's *video* starts."""
    feature_start_B: np.ndarray
    feature_count_B: np.ndarray

    def places(self) -> Iterator[tuple[int, int, int, int]]:
        """Shard, offset, first row and rows of each clip."""
        columns = (self.shard_B, self.feature_offset_B, self.feature_start_B, self.feature_count_B)
        return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True)
class CaptionFacts:
    """What the bag files say of some captions."""

    ids_NL: np.ndarray
    """[N, L] int32 token ids, 0 = padding, L the longest caption's."""
    video_N: np.ndarray
    start_N: np.ndarray
    stop_N: np.ndarray
    hash_N: np.ndarray


class BagIndex:
    """Numbers run through the shards in order: shard 0's clips first, then shard 1's, ..."""

    def __init__(
        self, shards: list[ShardFiles], bags: list[Bags], bad: frozenset[int] = frozenset()
    ) -> None:
        """Shards of the numbers in `bad` keep their numbers, but nothing is read from them."""
        self.shards, self.bags, self.bad = shards, bags, bad
        self._videos = _bases([b.num_videos for b in bags])
        self._clips = _bases([b.num_clips for b in bags])
        self._captions = _bases([b.num_captions for b in bags])
        self.bag_size = max((b.bag_idx.shape[1] for b in bags), default=0)

    @property
    def metadata(self) -> dict:
        """Of the first good file; recipe and vocabulary are those of all good ones."""
        good = next((number for number in range(len(self.bags)) if number not in self.bad), 0)
        return self.bags[good].metadata

    @property
    def feature_dim(self) -> int:
        """F."""
        return self.metadata["recipe"]["feature_dim"]

    def videos(self, split: int) -> list[np.ndarray]:
        """For each shard the numbers of its videos of a split that have a clip."""
        found = []
        for base, bags in zip(self._videos[:-1], self.bags, strict=True):
            rows = _distinct_sorted(bags.clip_video)
            found.append(base + rows[bags.video_split[rows] == split])
        return found

    def clips_of_shards(self, split: int) -> np.ndarray:
        """Clips of a split in each shard: [S] int64."""
        return np.array(
            [np.count_nonzero(b.video_split[b.clip_video] == split) for b in self.bags], np.int64
        )

    def clip_counts(self) -> np.ndarray:
        """Clips of each video over all files: [V] int64."""
        counts = [np.bincount(b.clip_video, minlength=b.num_videos) for b in self.bags]
        return np.concatenate([np.zeros(0, np.int64), *counts])

    def clips_of_split(self, split: int) -> np.ndarray:
        """The numbers of a split's clips in all good shards: [C] int64."""
        found = [np.zeros(0, np.int64)]
        for number, (base, bags) in enumerate(zip(self._clips[:-1], self.bags, strict=True)):
            if number not in self.bad:
                found.append(base + np.flatnonzero(bags.video_split[bags.clip_video] == split))
        return np.concatenate(found)

    def good(self, videos: np.ndarray) -> np.ndarray:
        """Which videos lie in shards that are read: [V] bool."""
        shard_V = np.searchsorted(self._videos, videos, side="right") - 1
        return ~np.isin(shard_V, sorted(self.bad))

    def key_of(self, video: int) -> tuple[int, str]:
        """The shard of a video, and its key there."""
        shard = int(np.searchsorted(self._videos, video, side="right")) - 1
        return shard, self.bags[shard].vid_paths[video - self._videos[shard]].decode()

    def video_of(self, tar: str, key: str) -> int | None:
        """The video with this key in this shard; None: there is none."""
        for shard, files in enumerate(self.shards):
            if str(files.tar) == tar:
                rows = np.flatnonzero(self.bags[shard].vid_paths == key.encode())
                return int(self._videos[shard] + rows[0]) if len(rows) else None
        return None

    def clips_of(self, video: int) -> tuple[int, int]:
        """The first clip of a video, and how many it has."""
        shard = int(np.searchsorted(self._videos, video, side="right")) - 1
        row = video - self._videos[shard]
        # Keys of the array's own type: others would make numpy convert the whole array.
        keys = np.array([row, row + 1], self.bags[shard].clip_video.dtype)
        first, stop = np.searchsorted(self.bags[shard].clip_video, keys)
        return int(self._clips[shard] + first), int(stop - first)

    def clip_facts(self, clips_B: np.ndarray) -> ClipFacts:
        """Look clips up; their order is kept."""
        shard_B = np.searchsorted(self._clips, clips_B, side="right") - 1
        count = len(clips_B)
        facts = ClipFacts(
            shard_B=shard_B,
            video_B=np.zeros(count, np.int64),
            start_B=np.zeros(count, np.float64),
            stop_B=np.zeros(count, np.float64),
            captions_BA=np.full((count, self.bag_size), -1, np.int64),
            feature_offset_B=np.zeros(count, np.int64),
            feature_start_B=np.zeros(count, np.int64),
            feature_count_B=np.zeros(count, np.int64),
        )
        for shard in np.unique(shard_B).tolist():
            here = np.flatnonzero(shard_B == shard)
            bags, rows = self.bags[shard], clips_B[here] - self._clips[shard]
            video = bags.clip_video[rows]
            facts.video_B[here] = self._videos[shard] + video
            facts.start_B[here], facts.stop_B[here] = bags.clip_start[rows], bags.clip_stop[rows]
            facts.feature_offset_B[here] = bags.feature_offset[video]
            facts.feature_start_B[here] = bags.clip_feature_start[rows]
            facts.feature_count_B[here] = bags.clip_feature_count[rows]
            bag = bags.bag_idx[rows].astype(np.int64)
            facts.captions_BA[here, : bag.shape[1]] = np.where(
                bag >= 0, bag + self._captions[shard], -1
            )
        return facts

    def caption_facts(self, captions_N: np.ndarray) -> CaptionFacts:
        """Look captions up; their order is kept.

        Raises:
            ValueError: a token id is beyond the vocabulary.
        """
        shard_N = np.searchsorted(self._captions, captions_N, side="right") - 1
        parts = {
            shard: (np.flatnonzero(shard_N == shard), self.bags[shard])
            for shard in np.unique(shard_N).tolist()
        }
        rows = {
            shard: captions_N[here] - self._captions[shard] for shard, (here, _) in parts.items()
        }
        longest = max(
            (int(bags.cap_lens[rows[shard]].max()) for shard, (_, bags) in parts.items()), default=1
        )
        facts = CaptionFacts(
            np.zeros((len(captions_N), longest), np.int32),
            *(np.zeros(len(captions_N), t) for t in ("i8", "f8", "f8", "i8")),
        )
        for shard, (here, bags) in parts.items():
            ids = bags.cap_ids[rows[shard]][:, :longest]
            facts.ids_NL[here, : ids.shape[1]] = ids
            facts.video_N[here] = self._videos[shard] + bags.cap_video[rows[shard]]
            facts.start_N[here] = bags.cap_start[rows[shard]]
            facts.stop_N[here] = bags.cap_stop[rows[shard]]
            facts.hash_N[here] = bags.cap_hash[rows[shard]]
        self._check_ids(facts.ids_NL)
        return facts

    def _check_ids(self, ids_NL: np.ndarray) -> None:
        """An id out of range must never reach a gather on a GPU."""
        size = self.metadata["vocabulary_size"]
        if ids_NL.size and not 0 <= ids_NL.min() <= ids_NL.max() <= size:
            raise ValueError(
                f"token ids span [{ids_NL.min()}, {ids_NL.max()}], allowed: [0, {size}]:"
                f" {again('bags')}"
            )


def files_of_plan(plan: Path, bags: Path, shards: Path) -> list[ShardFiles]:
    """The files of every shard of the plan folder; other files in the folders do not count."""
    names = sorted(path.stem for path in plan.glob("*.tsv"))
    if not names:
        raise FileNotFoundError(f"{plan} holds no plan: {again('plan')}")
    return [ShardFiles(bags / f"{name}.npz", shards / f"{name}.tar") for name in names]


def open_index(shards: list[ShardFiles], bad: frozenset[int] = frozenset()) -> BagIndex:
    """Map all bag files, those of the shards in `bad` too: their videos keep their numbers.

    Raises:
        ValueError: a file is cut or foreign.
        FileNotFoundError: a file is missing.
    """
    bags = []
    for files in shards:
        if not files.bags.exists():
            raise FileNotFoundError(f"{files.bags} is missing: {again(files.bags)}")
        bags.append(read_bags(files.bags))
    return BagIndex(shards, bags, bad)


def _bases(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _distinct_sorted(values: np.ndarray) -> np.ndarray:
    """The distinct values of a sorted array, without a copy of it."""
    if not len(values):
        return np.zeros(0, np.int64)
    first = np.concatenate([[True], values[1:] != values[:-1]])
    return values[first].astype(np.int64)
