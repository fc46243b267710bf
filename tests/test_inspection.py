"""A row for every video that is looked at, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.inspection import inspect_all, read_deny_list, summary
from pipeline.settings import ManifestSettings
from tests.examples import planned
from tests.videos import steady, write_video


def settings(**changes) -> ManifestSettings:
    values = {"min_seconds": 0, "max_seconds": 36000, "timeout_seconds": 30, "deny_list": None}
    return ManifestSettings(**{**values, **changes})


def test_every_video_has_its_row_in_the_order_of_the_plan(broken_videos, ffprobe):
    rows = inspect_all(broken_videos, settings=settings(), ffprobe=ffprobe, workers=3)
    assert [row.video_id for row in rows] == [video.video_id for video in broken_videos]
    reasons = ["unreadable", "", "empty", "missing", "no_video_stream", "not_a_file", "", "removed"]
    assert [row.reason for row in rows] == reasons
    assert [row.accepted for row in rows] == [not reason for reason in reasons]
    assert all(bool(row.error_message) == bool(row.reason) for row in rows)
    good = rows[1]
    assert (good.width, good.codec, good.stream_index) == (96, "h264", 0)
    assert good.size_bytes == Path(good.path).stat().st_size
    assert good.mtime_ns == Path(good.path).stat().st_mtime_ns
    expected = "8 videos: 2 accepted, 6 rejected (1 empty, 1 missing, 1 no_video_stream"
    assert summary(rows).startswith(expected)


def test_lengths_are_held_to_the_settings(tmp_path, ffprobe):
    short = write_video(tmp_path / "short.mp4", steady(10))
    long = write_video(tmp_path / "long.mp4", steady(80))
    limits = settings(min_seconds=1, max_seconds=3)
    rows = inspect_all(planned(short, long), settings=limits, ffprobe=ffprobe, workers=2)
    assert [row.reason for row in rows] == ["too_short", "too_long"]
    assert rows[0].duration_seconds == pytest.approx(0.4)
    assert "manifest.min_seconds is 1" in rows[0].error_message


@pytest.mark.parametrize(
    "text", ["v1\n v3 \n\n", "\ufeffv1\r\nv3\r\n", 'why,video_id\n"a, b",v1\nold,v3\n']
)
def test_denied_ids_are_rejected(tmp_path, plain_video, ffprobe, text):
    path = tmp_path / "deny.txt"
    path.write_bytes(text.encode())
    rows = inspect_all(
        planned(*[plain_video] * 4),
        settings=settings(deny_list=str(path)),
        ffprobe=ffprobe,
        workers=2,
    )
    assert [row.reason for row in rows] == ["", "denied", "", "denied"]


def test_a_deny_list_that_is_none_is_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"manifest\.deny_list .* does not exist"):
        read_deny_list(tmp_path / "absent.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_deny_list(tmp_path / "binary")
    assert read_deny_list(None) == frozenset()


def test_a_deny_list_that_is_no_csv_is_named(tmp_path):
    (tmp_path / "deny.csv").write_text("x" * 200_000)
    with pytest.raises(ValueError, match=r"deny_list .*deny\.csv is not a CSV file: field larger"):
        read_deny_list(tmp_path / "deny.csv")
