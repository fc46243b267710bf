"""Look at videos without decoding them: what becomes a manifest's rows, accepted or rejected."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from pipeline.formats.manifest import ManifestRow, Reason, VideoFault
from pipeline.formats.plan import PlannedVideo
from pipeline.probe import Probe, check_file, probe_video
from pipeline.settings import ManifestSettings

NOTHING_KNOWN = Probe(
    duration_seconds=0.0,
    start_seconds=0.0,
    width=0,
    height=0,
    frame_rate=0.0,
    codec="",
    pixel_format="",
    rotation=0,
    stream_index=-1,
)


def read_deny_list(path: str | Path | None) -> frozenset[str]:
    """The video ids of a deny list: one on each line, or the column video_id of a CSV file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not UTF-8 text, or no CSV.
    """
    if path is None:
        return frozenset()
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"manifest.deny_list {path} does not exist") from None
    except UnicodeDecodeError:
        raise ValueError(f"manifest.deny_list {path} is not UTF-8 text") from None
    lines = text.splitlines()
    try:
        header = next(csv.reader(lines[:1]), [])
        if "video_id" in header:
            return frozenset(row["video_id"] for row in csv.DictReader(lines) if row["video_id"])
    except csv.Error as error:
        raise ValueError(f"manifest.deny_list {path} is not a CSV file: {error}") from None
    return frozenset(line.strip() for line in lines if line.strip())


def inspect(
    video: PlannedVideo, *, settings: ManifestSettings, ffprobe: str, denied: frozenset[str]
) -> ManifestRow:
    """The manifest row of one video; every fault of it becomes the row's reason."""
    probe, size, mtime = NOTHING_KNOWN, video.size_bytes, video.mtime_ns
    reason, message = Reason.NONE, ""
    try:
        _check_wanted(video, denied)
        status = check_file(video.path)
        size, mtime = status.st_size, status.st_mtime_ns
        probe = probe_video(video.path, ffprobe=ffprobe, timeout_seconds=settings.timeout_seconds)
        _check_length(probe, settings)
    except VideoFault as fault:
        reason, message = fault.reason, fault.message
    return ManifestRow(
        video_id=video.video_id,
        path=video.path,
        status="rejected" if reason else "accepted",
        reason=reason.value,
        error_message=message,
        size_bytes=size,
        mtime_ns=mtime,
        **asdict(probe),
    )


def _check_wanted(video: PlannedVideo, denied: frozenset[str]) -> None:
    if not video.path:
        raise VideoFault(Reason.REMOVED, "its path in the videos table is empty")
    if video.video_id in denied:
        raise VideoFault(Reason.DENIED, "its id is on the deny list")


def _check_length(probe: Probe, settings: ManifestSettings) -> None:
    """Refuse declared lengths outside the settings; a file that declares none passes."""
    seconds = probe.duration_seconds
    if 0 < seconds < settings.min_seconds:
        short = f"{seconds:g} s, manifest.min_seconds is {settings.min_seconds:g}"
        raise VideoFault(Reason.TOO_SHORT, short)
    if seconds > settings.max_seconds:
        long = f"{seconds:g} s, manifest.max_seconds is {settings.max_seconds:g}"
        raise VideoFault(Reason.TOO_LONG, long)


def inspect_all(
    videos: Iterable[PlannedVideo], *, settings: ManifestSettings, ffprobe: str, workers: int
) -> list[ManifestRow]:
    """Inspect videos with `workers` ffprobe processes at a time; rows come in the given order."""
    denied = read_deny_list(settings.deny_list)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(
            pool.map(
                lambda video: inspect(video, settings=settings, ffprobe=ffprobe, denied=denied),
                videos,
            )
        )


def summary(rows: list[ManifestRow]) -> str:
    """How many videos were accepted, and how many rejected for which reason."""
    reasons = Counter(row.reason for row in rows if not row.accepted)
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    accepted = sum(row.accepted for row in rows)
    return f"{len(rows)} videos: {accepted} accepted, {len(rows) - accepted} rejected" + (
        f" ({told})" if told else ""
    )
