"""Streams of packets: where they start, how long they are, what is damaged, and what is none."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import av
import pytest

from pipeline import video_stream
from pipeline.formats.manifest import Reason, VideoFault
from tests.video_oracles import decode, fault_of, nearest, numbers
from tests.videos import (
    cut,
    number_of,
    rot,
    steady,
    write_audio,
    write_video,
)


def test_a_transport_stream_counts_from_its_own_start(tmp_path, plain_video):
    path = write_video(tmp_path / "late.ts", steady(100, start=11.4))
    assert av.open(str(path)).start_time > 11_000_000
    assert numbers(path) == numbers(plain_video)


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_avi_without_pts(tmp_path, codec):
    path = write_video(tmp_path / "plain.avi", steady(100), codec=codec, ticks=25)
    found = numbers(path)
    assert abs(len(found) - 40) <= 1
    assert all(abs(a - b) <= 1 for a, b in zip(found, nearest(steady(100), 10, 4), strict=False))


def test_a_file_without_timestamps_goes_by_its_declared_rate(tmp_path, plain_video):
    path = write_video(tmp_path / "raw.h264", steady(100), container="h264")
    found, report = decode(path)
    assert report.synthetic_pts
    assert not decode(plain_video)[1].synthetic_pts
    assert abs(report.num_frames - 40) <= 1
    assert [number_of(picture) for picture in found][:30] == nearest(steady(100), 10, 4)[:30]


def test_a_second_recording_behind_the_first_is_a_fault(tmp_path):
    one = write_video(tmp_path / "one.ts", steady(50, start=3)).read_bytes()
    (tmp_path / "two.ts").write_bytes(one + one)
    fault = fault_of(tmp_path / "two.ts")
    assert fault.reason is Reason.DISCONTINUOUS
    assert "jump back" in fault.message


# Damage


def test_truncation_is_measured(tmp_path):
    fast = {"movflags": "faststart"}
    for name, options in (("cut.mp4", fast), ("cut.mkv", {}), ("cut_sound.mkv", {})):
        path = write_video(
            tmp_path / name,
            steady(200),
            container_options=options,
            audio_seconds=8 if "sound" in name else 0,
        )
        assert decode(path)[1].missing_fraction < 0.02
        cut(path, 0.6)
        report = decode(path)[1]
        with av.open(str(path)) as container:
            left = sum(packet.size > 0 for packet in container.demux(video=0))
        assert 20 < left < 180, name
        assert report.decoded_seconds == pytest.approx(left / 25, abs=0.1), name
        assert report.missing_fraction == pytest.approx(1 - left / 200, abs=0.02), name
        assert report.num_frames == pytest.approx(left / 2.5, abs=1), name


def test_a_longer_sound_misses_nothing(tmp_path):
    for name in ("long.mp4", "long.mkv", "long.ts"):
        path = write_video(tmp_path / name, steady(50), audio_seconds=6)
        report = decode(path)[1]
        assert report.num_frames == pytest.approx(20, abs=1)
        assert report.missing_fraction == pytest.approx(0, abs=0.05)


def test_the_manifest_tells_the_length_of_a_file_that_does_not(tmp_path):
    path = write_video(tmp_path / "raw.h264", steady(50), container="h264")
    assert decode(path)[1].missing_fraction == 0
    assert decode(path, declared_seconds=4)[1].missing_fraction == pytest.approx(0.5, abs=0.02)


def test_bad_packets_lose_only_themselves(tmp_path):
    path = write_video(tmp_path / "rot.mp4", steady(100), codec_options={"g": "1"})
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0)]
    data = bytearray(path.read_bytes())
    for start, size in (places[20], places[21], places[60]):
        data[start : start + size] = b"\xff" * size
    path.write_bytes(data)
    found, report = decode(path, 25)
    assert (report.packets, report.bad_packets, report.num_frames) == (100, 3, 100)
    lost = {20: 19, 21: 19, 60: 59}
    assert [number_of(picture) for picture in found] == [lost.get(n, n) for n in range(100)]


def test_rotten_files_end_in_time(tmp_path):
    good = write_video(tmp_path / "good.mp4", steady(50), audio_seconds=2)
    started = time.monotonic()
    for seed in range(12):
        path = Path(shutil.copy(good, tmp_path / f"rot{seed}.mp4"))
        rot(path, bytes_changed=200, after=0, seed=seed)
        with contextlib.suppress(VideoFault):
            assert decode(path)[1].num_frames > 0
    assert time.monotonic() - started < 120


def test_faults_have_names(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "page.mp4").write_text("<html><body>429</body></html>")
    os.mkfifo(tmp_path / "pipe.mp4")
    write_audio(tmp_path / "sound.mp4", 1)
    write_audio(tmp_path / "cover.mp4", 1, cover=True)
    cut(write_video(tmp_path / "cut.mp4", steady(200)), 0.6)
    fast = {"movflags": "faststart"}
    head = write_video(tmp_path / "head.mp4", steady(50), container_options=fast)
    data = head.read_bytes()
    head.write_bytes(data[: data.index(b"mdat") + 8])
    expected = {
        "absent.mp4": Reason.MISSING,
        "pipe.mp4": Reason.NOT_A_FILE,
        "empty.mp4": Reason.EMPTY,
        "page.mp4": Reason.UNREADABLE,
        "cut.mp4": Reason.UNREADABLE,
        "sound.mp4": Reason.NO_VIDEO_STREAM,
        "cover.mp4": Reason.NO_VIDEO_STREAM,
        "head.mp4": Reason.NO_FRAMES,
    }
    assert {name: fault_of(tmp_path / name).reason for name in expected} == expected


def test_a_row_of_jpeg_pictures_is_called_that(tmp_path):
    jpegs = {"codec": "mjpeg", "pixels": "yuvj420p", "container": "mjpeg"}
    path = write_video(tmp_path / "row.mjpeg", steady(25), **jpegs)
    assert decode(path)[1].num_frames == 10
    assert "a row of JPEG pictures" in fault_of(path.rename(tmp_path / "row.jpg")).message


def test_a_header_that_claims_too_many_pixels_gets_no_memory(plain_video, monkeypatch):
    monkeypatch.setattr(video_stream, "MAX_PIXELS", 96 * 64 - 1)
    assert fault_of(plain_video).reason is Reason.NO_FRAMES


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4", "list.ffconcat"])
def test_playlists_reach_no_other_file(plain_video, tmp_path, name):
    shutil.copy(plain_video, tmp_path / "part.mp4")
    hls = f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{tmp_path}/part.mp4\n#EXT-X-ENDLIST\n"
    for text in (hls, "ffconcat version 1.0\nfile part.mp4\n"):
        (tmp_path / name).write_text(text)
        assert fault_of(tmp_path / name).reason is Reason.UNREADABLE


@pytest.mark.parametrize("name", ["-x.mp4", "http:x.mp4", "a b'é%d?.mp4", "no end"])
def test_odd_names_are_names(plain_video, tmp_path, monkeypatch, name):
    shutil.copy(plain_video, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert decode(name)[1].num_frames == 40


def test_the_log_level_of_libav_is_left_alone(plain_video):
    before = av.logging.get_level()
    decode(plain_video)
    assert av.logging.get_level() == before
