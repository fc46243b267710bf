"""The manifest of one shard: what ffprobe says of each of its videos, accepted or rejected."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path

from pipeline.formats.parquet import read_rows, write_table

VERSION = "manifest-1"


class Reason(StrEnum):
    """Why a video is rejected, by the manifest or later by the encoder."""

    NONE = ""
    REMOVED = "removed"
    """Its path in the videos table is empty."""
    DENIED = "denied"
    """Its id is on the deny list."""
    MISSING = "missing"
    """There is no file at its path."""
    NOT_A_FILE = "not_a_file"
    """A folder, a named pipe or a device stands at its path."""
    NO_PERMISSION = "no_permission"
    """The file may not be read."""
    EMPTY = "empty"
    """The file has 0 bytes."""
    UNREADABLE = "unreadable"
    """ffprobe or the decoder cannot open it."""
    NO_VIDEO_STREAM = "no_video_stream"
    """It opens, and holds no video beside cover pictures."""
    NO_FRAMES = "no_frames"
    """It has a video stream from which no frame decodes."""
    TOO_SHORT = "too_short"
    """Below manifest.min_seconds."""
    TOO_LONG = "too_long"
    """Above manifest.max_seconds."""
    TIMEOUT = "timeout"
    """Probing or decoding took longer than its time budget."""
    TRUNCATED = "truncated"
    """More than encode.max_missing of its declared length does not decode."""
    DAMAGED = "damaged"
    """More than encode.max_bad_packets of its packets do not decode."""
    DISCONTINUOUS = "discontinuous"
    """Its timestamps jump backwards, or ahead by more than an hour, so no clock fits it."""
    CRASHED = "crashed"
    """The process that decoded it died, and died again at the second try."""


class VideoFault(Exception):
    """A named fault of one video: it becomes a row, never a crash."""

    def __init__(self, reason: Reason, message: str = ""):
        super().__init__(message or reason.value)
        self.reason = reason
        self.message = " ".join(str(message).split())
        """One line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """One video. Numbers of a rejected video are what was found out before it was rejected."""

    video_id: str
    path: str
    status: str
    """`accepted` or `rejected`."""
    reason: str
    """A `Reason`, empty when accepted."""
    error_message: str
    """One line, empty when accepted."""
    duration_seconds: float
    """As declared by the file (0: not declared); only decoding tells the true one."""
    start_seconds: float
    """The container's start time: the zero of the caption clock."""
    width: int
    height: int
    """Stored size in pixels, before rotation (0: not known)."""
    frame_rate: float
    """The declared average (0: not known); never used to place frames in time."""
    codec: str
    pixel_format: str
    rotation: int
    """Degrees clockwise that a player turns the picture: 0, 90, 180 or 270."""
    stream_index: int
    """The chosen video stream, -1 when there is none."""
    size_bytes: int
    mtime_ns: int

    @property
    def accepted(self) -> bool:
        """Whether the encoder should try this video."""
        return self.status == "accepted"


SCHEMA = {
    field.name: {"str": "string", "float": "float64", "int": "int64"}[str(field.type)]
    for field in fields(ManifestRow)
}


def write_manifest(path: str | Path, rows: list[ManifestRow]) -> None:
    """Write a shard's manifest, one row per planned video in plan order."""
    write_table(path, SCHEMA, [asdict(row) for row in rows], version=VERSION)


def read_manifest(path: str | Path) -> list[ManifestRow]:
    """Read a shard's manifest."""
    rows, _ = read_rows(path, SCHEMA, version=VERSION)
    return [ManifestRow(**row) for row in rows]
