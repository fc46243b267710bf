"""Verdicts: what is flagged, what fails, and that limits are judged anew for features of old."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.decoded import DecodeReport
from pipeline.decoding import Failed, Finished
from pipeline.formats.manifest import Reason
from pipeline.verdicts import facts_of_decoded, facts_of_failed, facts_of_rejected, judged
from tests.examples import encode_settings, manifest_row

SETTINGS = encode_settings()

ROW = dataclasses.replace(manifest_row("a"), duration_seconds=10.0)


def decoded(*, missing: float = 0.0, seconds: float = 10.0, bad: int = 0, late: float = 0.0):
    report = DecodeReport(
        num_frames=80,
        decoded_seconds=seconds - late,
        end_seconds=seconds,
        packets=100,
        bad_packets=bad,
        missing_fraction=missing,
        synthetic_pts=False,
    )
    return facts_of_decoded(ROW, Finished(0, report, size_bytes=5, mtime_ns=6))


def test_a_whole_video_is_encoded_and_carries_its_own_fingerprint():
    facts = judged(decoded(), ROW, SETTINGS)
    assert (facts.status, facts.reason, facts.error_message) == ("encoded", "", "")
    assert (facts.size_bytes, facts.mtime_ns, facts.truncated) == (5, 6, False)
    assert (facts.declared_seconds, facts.decoded_seconds, facts.packets) == (10.0, 10.0, 100)


def test_a_late_video_ends_where_its_last_frame_does_on_the_caption_clock():
    assert decoded(seconds=11.5, late=1.5).decoded_seconds == 11.5


@pytest.mark.parametrize(
    ("missing", "seconds", "truncated"),
    [(0.01, 990.0, False), (0.1, 0.9, False), (0.019, 98.1, False), (0.1, 9.0, True)],
)
def test_truncated_means_more_than_2_percent_and_half_a_second(missing, seconds, truncated):
    assert judged(decoded(missing=missing, seconds=seconds), ROW, SETTINGS).truncated is truncated


def test_limits_are_inclusive_and_name_their_key():
    settings = dataclasses.replace(SETTINGS, max_missing=0.5, max_bad_packets=0.2)
    assert judged(decoded(missing=0.5, seconds=5, bad=20), ROW, settings).status == "encoded"
    short = judged(decoded(missing=0.6, seconds=4.0), ROW, settings)
    assert (short.status, short.reason) == ("failed", Reason.TRUNCATED)
    assert short.error_message == (
        "60% of its length (6.0 s) does not decode, encode.max_missing is 0.5"
    )
    rotten = judged(decoded(bad=21), ROW, settings)
    assert (rotten.status, rotten.reason) == ("failed", Reason.DAMAGED)
    assert rotten.error_message == (
        "21 of 100 packets do not decode, encode.max_bad_packets is 0.2"
    )


def test_old_facts_are_judged_by_todays_settings_and_manifest():
    facts = judged(decoded(missing=0.3, seconds=7.0), ROW, SETTINGS)
    longer = dataclasses.replace(ROW, duration_seconds=11.0)
    strict = dataclasses.replace(SETTINGS, max_missing=0.1)
    assert judged(facts, longer, SETTINGS).declared_seconds == 11.0
    assert judged(facts, ROW, strict).status == "failed"
    assert judged(facts, ROW, SETTINGS) == facts


def test_videos_without_features_keep_their_reason():
    rejected = facts_of_rejected(manifest_row("a", "empty", "0 bytes"))
    assert (rejected.status, rejected.reason) == ("rejected", "empty")
    failed = facts_of_failed(ROW, Failed(0, Reason.NO_FRAMES, "none of 9"))
    assert (failed.status, failed.reason, failed.error_message, failed.num_frames) == (
        *("failed", "no_frames", "none of 9"),
        0,
    )
