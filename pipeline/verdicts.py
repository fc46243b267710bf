"""What becomes of a video in a shard's index: what decoding found, judged by the settings."""

from __future__ import annotations

from dataclasses import replace

from pipeline.decoding import Failed, Finished
from pipeline.formats.manifest import ManifestRow, Reason
from pipeline.formats.shard import VideoFacts
from pipeline.settings import EncodeSettings

TRUNCATED_FRACTION, TRUNCATED_SECONDS = 0.02, 0.5
"""A video that misses more than both is flagged; less is how headers round."""


def facts_of_rejected(row: ManifestRow) -> VideoFacts:
    """A video that the manifest refused."""
    return _without_features(row, "rejected", row.reason, row.error_message)


def facts_of_failed(row: ManifestRow, event: Failed) -> VideoFacts:
    """A video that does not decode."""
    return _without_features(row, "failed", event.reason.value, event.message)


def facts_of_decoded(row: ManifestRow, event: Finished) -> VideoFacts:
    """A decoded video, still to be judged."""
    report = event.report
    return VideoFacts(
        video_id=row.video_id,
        status="encoded",
        reason=Reason.NONE.value,
        error_message="",
        num_frames=report.num_frames,
        decoded_seconds=report.end_seconds,
        declared_seconds=row.duration_seconds,
        truncated=False,
        bad_packets=report.bad_packets,
        packets=report.packets,
        missing_fraction=report.missing_fraction,
        decoder="nvdec" if event.on_gpu else "cpu",
        size_bytes=event.size_bytes,
        mtime_ns=event.mtime_ns,
    )


def judged(facts: VideoFacts, row: ManifestRow, settings: EncodeSettings) -> VideoFacts:
    """`facts` with the verdict of today's settings, whenever the video was decoded."""
    missing, bad = facts.missing_fraction, facts.bad_packets / max(facts.packets, 1)
    missing_seconds = _missing_seconds(facts)
    facts = replace(
        facts,
        declared_seconds=row.duration_seconds,
        truncated=missing > TRUNCATED_FRACTION and missing_seconds > TRUNCATED_SECONDS,
    )
    if missing > settings.max_missing:
        message = (
            f"{missing:.0%} of its length ({missing_seconds:.1f} s) does not decode,"
            f" encode.max_missing is {settings.max_missing}"
        )
        return replace(facts, status="failed", reason=Reason.TRUNCATED.value, error_message=message)
    if bad > settings.max_bad_packets:
        message = (
            f"{facts.bad_packets} of {facts.packets} packets do not decode,"
            f" encode.max_bad_packets is {settings.max_bad_packets}"
        )
        return replace(facts, status="failed", reason=Reason.DAMAGED.value, error_message=message)
    return facts


def _missing_seconds(facts: VideoFacts) -> float:
    """The fraction is of the whole length, decoded and missing."""
    if facts.missing_fraction >= 1:
        return facts.declared_seconds
    return facts.decoded_seconds * facts.missing_fraction / (1 - facts.missing_fraction)


def _without_features(row: ManifestRow, status: str, reason: str, message: str) -> VideoFacts:
    return VideoFacts(
        video_id=row.video_id,
        status=status,
        reason=reason,
        error_message=message,
        num_frames=0,
        decoded_seconds=0.0,
        declared_seconds=row.duration_seconds,
        truncated=False,
        bad_packets=0,
        size_bytes=row.size_bytes,
        mtime_ns=row.mtime_ns,
    )
