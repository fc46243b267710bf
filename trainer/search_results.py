"""What a search says of clips and captions that it found: video, file, span, and what is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipeline.formats.bags import read_bags
from pipeline.formats.captions import Caption, read_captions
from pipeline.formats.names import again, sample_key, video_id_of
from pipeline.formats.plan import read_planned_videos
from pipeline.formats.tokenizer import encode_caption
from pipeline.formats.vocabulary import read_vocabulary

NUM_CAPTIONS = 2
"""Captions that are shown of a clip: the nearest ones."""


@dataclass(frozen=True, slots=True)
class Library:
    """The files of a results folder, read when something of theirs is found."""

    results: Path
    names: list[str]
    """Of the plan's shards."""
    vocabulary: dict[str, int]
    _captions: dict[str, dict[str, list[Caption]]] = field(default_factory=dict)
    _paths: dict[str, dict[str, str]] = field(default_factory=dict)

    def clip(self, shard: str, video_id: str, start: float, end: float) -> dict:
        """A clip with its file and its nearest captions."""
        captions = self.captions_of(shard, video_id)
        near = sorted(captions, key=lambda c: _distance(c, start, end))[:NUM_CAPTIONS]
        return {
            "video_id": video_id,
            "path": self.path_of(shard, video_id),
            "start": start,
            "end": end,
            "captions": [
                {"start": c.start_seconds, "end": c.end_seconds, "text": c.text} for c in near
            ],
        }

    def caption(self, number: int, row: int) -> dict:
        """The caption of a row of a shard's bags, as it was written.

        Raises:
            ValueError: the captions are no longer those that the bags were made of.
        """
        shard = self.names[number]
        bags = read_bags(self.results / f"bags/{shard}.npz")
        video_id = video_id_of(bags.vid_paths[bags.cap_video[row]].decode("ascii"))
        start, end = float(bags.cap_start[row]), float(bags.cap_stop[row])
        ids = [int(token) for token in bags.cap_ids[row] if token]
        texts = [
            caption.text
            for caption in self.captions_of(shard, video_id)
            if (caption.start_seconds, caption.end_seconds) == (start, end)
            and encode_caption(caption.text, self.vocabulary, bags.cap_ids.shape[1]) == ids
        ]
        if not texts:
            raise ValueError(
                f"{self.results}/captions/{shard}.parquet lacks the caption of {video_id!r} at"
                f" {start:g}-{end:g} s that bags/{shard}.npz holds: it is newer than the bags;"
                f" {again('bags')}"
            )
        path = self.path_of(shard, video_id)
        return {"video_id": video_id, "path": path, "start": start, "end": end, "text": texts[0]}

    def captions_of(self, shard: str, video_id: str) -> list[Caption]:
        """All captions of a video, in time."""
        if shard not in self._captions:
            captions, _ = read_captions(self.results / f"captions/{shard}.parquet")
            by_video: dict[str, list[Caption]] = {}
            for caption in captions:
                by_video.setdefault(caption.video_id, []).append(caption)
            self._captions[shard] = by_video
        return self._captions[shard].get(video_id, [])

    def path_of(self, shard: str, video_id: str) -> str:
        """The video's file, as the videos table names it."""
        if shard not in self._paths:
            videos = read_planned_videos(self.results / f"plan/{shard}.tsv")
            self._paths[shard] = {video.video_id: video.path for video in videos}
        return self._paths[shard].get(video_id, "")

    def shard_of(self, video_id: str) -> str:
        """The shard whose bags hold a video; one that is in none raises `ValueError`."""
        key = sample_key(video_id).encode("ascii")
        for name in self.names:
            if key in read_bags(self.results / f"bags/{name}.npz").vid_paths:
                return name
        raise ValueError(
            f"the video {video_id!r} is in no bag file of {self.results}: rejected.csv may say why"
        )


def open_library(results: Path) -> Library:
    """The results folder's shards; without a plan there are none, and that is an error."""
    names = sorted(path.stem for path in (results / "plan").glob("*.tsv"))
    if not names:
        raise FileNotFoundError(f"{results}/plan lists no shards: is --results right?")
    return Library(results, names, read_vocabulary(results / "vocabulary.txt"))


def table(found: dict) -> str:
    """The hits as lines for a terminal."""
    lines = []
    for hit in found["hits"]:
        span = f"{hit['start']:.1f}-{hit['end']:.1f} s"
        said = hit["text"] if "text" in hit else " | ".join(c["text"] for c in hit["captions"])
        lines.append((str(hit["rank"]), f"{hit['score']:.3f}", hit["video_id"], span, said))
    header = ("#", "score", "video", "span", "said")
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(4)]
    return "".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(line[:4], widths, strict=True)), line[4]])
        + "\n"
        for line in [header, *lines]
    )


def _distance(caption: Caption, start: float, end: float) -> tuple[float, float]:
    """The order of a bag: the gap between the spans, then how far the middles are apart."""
    gap = max(caption.start_seconds - end, start - caption.end_seconds, 0)
    apart = abs((caption.start_seconds + caption.end_seconds) - (start + end)) / 2
    return round(gap, 6), round(apart, 6)
