"""Features that need not be computed again: of a killed run of this shard, or of its last good one.

    {shards}/.partial/{shard}/     the finished videos of a run that did not end
    {shards}/.previous/{shard}.*   links to the last tar and index, which outlive their deletion

A workflow deletes a rule's outputs before it runs again. Both folders are outputs of no rule, so
what they hold is still there, and is good exactly when the video's file and recipe are the same.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from pipeline.formats.manifest import ManifestRow, Reason
from pipeline.formats.partial import read_partial, write_partial
from pipeline.formats.recipe import Recipe
from pipeline.formats.shard import (
    EncodedVideo,
    IndexRow,
    VideoFacts,
    read_index,
    read_video,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retry:
    """Which videos that failed are tried again though neither they nor the recipe changed."""

    reasons: frozenset[str] | None
    """None: all of them."""

    @classmethod
    def parse(cls, text: str) -> Retry:
        """`all`, `none`, or reasons with commas between them."""
        if text in ("all", "none"):
            return cls(None if text == "all" else frozenset())
        reasons = frozenset(filter(None, text.split(",")))
        unknown = sorted(reasons - {reason.value for reason in Reason})
        if unknown or not reasons:
            allowed = ", ".join(reason.value for reason in Reason if reason)
            raise ValueError(
                f"retry is {text!r}, allowed: all, none, or some of {allowed}, with commas between"
            )
        return cls(reasons)

    def wanted(self, reason: str) -> bool:
        """Whether a video that failed for `reason` is tried again."""
        return self.reasons is None or reason in self.reasons


RETRY_ALL = Retry(None)


class FeatureStore:
    """The finished videos of one shard, wherever they lie; memory holds none of their features."""

    def __init__(self, tar_path: Path, index_path: Path, recipe: Recipe):
        self.outputs = (tar_path, index_path)
        self.identity = recipe.identity
        self.partial = tar_path.parent / ".partial" / tar_path.stem
        self.previous = tar_path.parent / ".previous"
        self.last_batch = 1
        """Of the last run, where it had this recipe."""
        rows = self._read_previous(index_path.name)
        self.previous_rows = {row.video_id: row for row in rows if row.encoded}
        self.previous_faults = {row.video_id: row for row in rows if row.status == "failed"}

    def find(self, row: ManifestRow) -> VideoFacts | None:
        """The facts of `row`'s video, if features of this very file and recipe are at hand."""
        for found in (self._from_partial(row.video_id), self._from_previous(row.video_id)):
            if found is not None and _same_file(found.facts, row):
                return found.facts
        return None

    def find_failed(self, row: ManifestRow) -> VideoFacts | None:
        """The facts of `row`'s video, if this very file failed in the last run of this recipe."""
        found = self.previous_faults.get(row.video_id)
        return _facts(found) if found is not None and _same_file(found, row) else None

    def keep(self, video: EncodedVideo) -> None:
        """Put a video that has just been encoded where `load` and the next run find it."""
        write_partial(self.partial, video, self.identity)

    def load(self, facts: VideoFacts) -> EncodedVideo:
        """The video whose facts `find` gave, or that was kept; `facts` may say more by now."""
        for read in (self._from_partial, self._from_previous):
            found = read(facts.video_id)
            if found is not None and _same_file(found.facts, facts):
                return EncodedVideo(facts=facts, features=found.features)
        raise ValueError(
            f"the features of {facts.video_id!r} vanished from {self.partial}: run again"
        )

    def finish(self) -> None:
        """After the shard is written: link it for the next run, and drop the pieces."""
        self.previous.mkdir(exist_ok=True)
        for output in self.outputs:
            _link(output, self.previous / output.name)
        shutil.rmtree(self.partial, ignore_errors=True)

    def _from_partial(self, video_id: str) -> EncodedVideo | None:
        try:
            return read_partial(self.partial, video_id, self.identity)
        except ValueError as error:
            logger.warning("%s; encoding it again", error)
            return None

    def _from_previous(self, video_id: str) -> EncodedVideo | None:
        row = self.previous_rows.get(video_id)
        if row is None:
            return None
        features = self._read_verified(row)
        return None if features is None else EncodedVideo(facts=_facts(row), features=features)

    def _read_previous(self, index_name: str) -> list[IndexRow]:
        """The last run's index; nothing if there was none with this recipe."""
        path = self.previous / index_name
        if not path.exists():
            return []
        try:
            index = read_index(path)
        except ValueError as error:
            logger.warning("%s; encoding everything again", error)
            return []
        if index.recipe.identity != self.identity:
            return []
        self.last_batch = int(index.provenance.get("batch", 1))
        return index.rows

    def _read_verified(self, row: IndexRow) -> np.ndarray | None:
        """A video's features in the last tar, None where the tar is not what its index says."""
        path = self.previous / self.outputs[0].name
        try:
            with open(path, "rb") as file:
                return read_video(file.fileno(), row)
        except (FileNotFoundError, ValueError) as error:
            logger.warning("%s: %s; encoding %r again", path, error, row.video_id)
            return None


def _facts(row: IndexRow) -> VideoFacts:
    return VideoFacts(**{field.name: getattr(row, field.name) for field in fields(VideoFacts)})


def _same_file(facts: VideoFacts, found: ManifestRow | VideoFacts) -> bool:
    """Whether both speak of the same id and of a file of the same size and time."""
    names = ("video_id", "size_bytes", "mtime_ns")
    return all(getattr(facts, name) == getattr(found, name) for name in names)


def _link(source: Path, target: Path) -> None:
    """Make `target` a second name of `source`, or a copy where the file system has no links."""
    scratch = target.with_name(target.name + ".tmp")
    scratch.unlink(missing_ok=True)
    try:
        os.link(source, scratch)
    except OSError:
        shutil.copy2(source, scratch)
    os.replace(scratch, target)
    # A rename onto another name of the same file does nothing and leaves both.
    scratch.unlink(missing_ok=True)
