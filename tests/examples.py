"""Settings, recipes and rows that many tests start from; each says only what it changes."""

from __future__ import annotations

from pathlib import Path

from pipeline.formats.manifest import ManifestRow
from pipeline.formats.plan import PlannedVideo
from pipeline.formats.recipe import Recipe, Sampling
from pipeline.settings import CaptionsSettings, EncodeSettings


def captions_settings(**changes: object) -> CaptionsSettings:
    """Times in seconds, as they stand."""
    usual = {
        "unit": "seconds",
        "offset_seconds": 0.0,
        "mend_rolling": True,
        "longest_seconds": 10.0,
        "centre_seconds": 3.0,
        "min_score": None,
    }
    return CaptionsSettings(**usual | changes)


def encode_settings(**changes: object) -> EncodeSettings:
    """S3D with random weights over 1 s windows of small pictures."""
    usual = {
        "encoder": "s3d",
        "weights": "random",
        "weights_sha256": None,
        "seed": 0,
        "space_to_depth": True,
        "output": "mixed_5c",
        "sampling": {"frame_rate": 8, "frames": 8, "stride_seconds": 1, "tail": "repeat"},
        "frame_size": 32,
        "precision": "float32",
        "max_missing": 0.5,
        "max_bad_packets": 0.2,
        "feature_version": 1,
    }
    return EncodeSettings(**usual | changes)


def recipe(**changes: object) -> Recipe:
    """Features of S3D, one vector a second."""
    usual = {
        "encoder": "s3d",
        "weights_sha256": "0" * 64,
        "output": "mixed_5c",
        "feature_dim": 8,
        "frame_size": 112,
        "sampling": Sampling(frame_rate=4, frames=4, stride_seconds=1, tail="repeat"),
        "precision": "float32",
        "feature_version": 1,
    }
    return Recipe(**usual | changes)


def manifest_row(video_id: str, reason: str = "", message: str = "", **changes) -> ManifestRow:
    """A video of 4 s that ffprobe accepted, or rejected for a reason."""
    usual = {
        "video_id": video_id,
        "path": f"videos/{video_id}",
        "status": "rejected" if reason else "accepted",
        "reason": reason,
        "error_message": message,
        "duration_seconds": 4.0,
        "start_seconds": 0.0,
        "width": 32,
        "height": 32,
        "frame_rate": 25.0,
        "codec": "h264",
        "pixel_format": "yuv420p",
        "rotation": 0,
        "stream_index": 0,
        "size_bytes": 1,
        "mtime_ns": 1,
    }
    return ManifestRow(**usual | changes)


def planned(*paths: Path | str) -> list[PlannedVideo]:
    """Videos of a plan that nobody has looked at yet."""
    return [PlannedVideo(f"v{index}", str(path), "", -1, -1) for index, path in enumerate(paths)]
