"""Pictures of clips for the pages, as data URIs, and links that open a video at a clip's start."""

from __future__ import annotations

import base64
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.formats.manifest import VideoFault
from pipeline.formats.plan import read_planned_videos
from pipeline.stills import StillDrawer

SIZE = 144
"""Pixels on a side; drawn at two thirds of it, for sharp screens."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Asked for by clip: anything with video_id, start and end, and the path where it has one."""

    paths: dict[str, str]
    """Video id to file."""
    drawer: StillDrawer = field(default_factory=StillDrawer)
    _made: dict[tuple, str] = field(default_factory=dict)

    def still(self, clip: dict) -> str:
        """The frame in the middle of a clip as a data URI; empty where there is none."""
        key = (clip["video_id"], clip["start"], clip["end"])
        if key not in self._made:
            self._made[key] = self._make(self._path(clip), (clip["start"] + clip["end"]) / 2)
        return self._made[key]

    def close(self) -> None:
        """End the process that draws."""
        self.drawer.close()

    def link(self, clip: dict) -> str:
        """A link to the file that starts playing at the clip; empty where there is none."""
        path = self._path(clip)
        # Not Path.is_file, which raises for a name that is too long or not permitted.
        return f"{path.resolve().as_uri()}#t={clip['start']:.1f}" if os.path.isfile(path) else ""

    def _path(self, clip: dict) -> Path:
        return Path(clip.get("path") or self.paths.get(clip["video_id"]) or "/")

    def _make(self, path: Path, seconds: float) -> str:
        if not os.path.isfile(path):
            return ""
        try:
            picture = self.drawer.still(path, seconds, SIZE)
        except VideoFault as fault:
            logger.warning("no picture of %s: %s", path, fault.message)
            return ""
        return "data:image/jpeg;base64," + base64.b64encode(picture).decode("ascii")


def pictures_of(results: Path, video_ids: set[str]) -> Pictures:
    """Pictures of some videos of a results folder."""
    paths = {
        video.video_id: video.path
        for plan in sorted((results / "plan").glob("*.tsv"))
        for video in read_planned_videos(plan)
        if video.video_id in video_ids
    }
    return Pictures(paths)
