"""What packets tell: holes that only the demuxer meets, late starts, last pictures that stand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest

from pipeline import packets
from pipeline.packets import PacketReader
from pipeline.video_stream import best_stream, open_video
from tests.video_oracles import assert_like_command_line, decode, nearest, numbers
from tests.videos import cut, numbered, steady, write_video

RANDOM = np.random.default_rng(0)
NOISE = RANDOM.integers(0, 60, (64, 96, 3), dtype=np.uint8)


def noisy(number: int) -> np.ndarray:
    """A numbered picture whose packet is large."""
    return np.clip(numbered(number) + np.roll(NOISE, number, 0).astype(int), 0, 255).astype("u1")


def with_hole(path: Path, part: float, *, fill: bytes = b"") -> int:
    """10 s of video, of which a part of the bytes is overwritten from the middle on; how many."""
    options = {"container_options": {"movflags": "faststart"}} if path.suffix == ".mp4" else {}
    codec = "libvpx" if path.suffix == ".webm" else "libx264"
    write_video(path, steady(250), codec=codec, draw=noisy, codec_options={"g": "25"}, **options)
    data = bytearray(path.read_bytes())
    size, start = round(part * len(data)), len(data) // 2
    data[start : start + size] = bytes(size) if not fill else fill * (size // len(fill))
    path.write_bytes(data)
    return size


@pytest.mark.parametrize("name", ["hole.mkv", "hole.webm", "hole.flv", "hole.ts", "hole.mp4"])
@pytest.mark.parametrize("fill", [b"", b"\x47\x80\x1a\x0b\xe5"])
def test_a_hole_is_as_much_damage_in_every_container(tmp_path, ffmpeg, name, fill):
    with_hole(tmp_path / name, 0.2, fill=fill)
    report = decode(tmp_path / name)[1]
    assert report.num_frames == 100
    assert report.packets == pytest.approx(250, abs=3)
    assert 35 <= report.bad_packets <= 80
    assert_like_command_line(ffmpeg, tmp_path / name)


@pytest.mark.parametrize("name", ["whole.mkv", "whole.webm", "whole.flv", "whole.ts", "whole.mp4"])
def test_a_whole_file_has_no_hole(tmp_path, name):
    with_hole(tmp_path / name, 0)
    report = decode(tmp_path / name)[1]
    assert (report.packets, report.bad_packets, report.missing_fraction) == (250, 0, 0)


@pytest.mark.parametrize("name", ["still.mkv", "still.webm", "still.flv", "still.ts"])
@pytest.mark.parametrize("sound", [0, 10])
def test_a_picture_that_stands_in_the_middle_is_no_hole(tmp_path, name, sound):
    codec = "libvpx" if name.endswith("webm") else "libx264"
    sound *= not name.endswith("webm")
    seconds = [*steady(40), *steady(40, start=7.5), *steady(10, 3, start=9.2)]
    path = write_video(tmp_path / name, seconds, codec=codec, draw=noisy, audio_seconds=sound)
    report = decode(path)[1]
    assert (report.packets, report.bad_packets) == (len(seconds), 0)


def test_behind_a_hole_of_a_transport_stream_the_demuxer_is_asked_again(tmp_path, ffmpeg):
    """Behind 128 KiB without a sync byte it says "again"."""
    path = tmp_path / "wide.ts"
    size = with_hole(path, 0.3)
    assert size > 2**17
    report = decode(path)[1]
    assert report.num_frames == 100
    assert report.packets == pytest.approx(250, abs=3)
    assert report.bad_packets == pytest.approx(75, abs=15)
    assert_like_command_line(ffmpeg, path)


def test_the_demuxer_is_not_asked_for_ever(plain_video, monkeypatch):
    monkeypatch.setattr(packets, "MAX_TRIES", 5)
    asked = []

    def demux(streams):
        asked.append(len(streams))
        raise av.error.BlockingIOError(11, "again")
        yield

    with open_video(plain_video) as container:
        stream = best_stream(container)
        parts = {name: getattr(container, name) for name in ("format", "name", "duration", "size")}
        never = SimpleNamespace(**parts, start_time=0, streams=container.streams, demux=demux)
        reader = PacketReader(never, stream, usual_step=512)
        assert list(reader.read()) == []
    assert (len(asked), reader.count, reader.bad) == (5, 1, 1)


# Late starts


@pytest.mark.parametrize(
    ("name", "start"), [("late.mkv", 6), ("late.mp4", 3), ("late.ts", 12), ("late.flv", 6)]
)
@pytest.mark.parametrize("sound", [0, 14, 22])
def test_a_late_start_is_no_missing_picture(tmp_path, name, start, sound):
    path = write_video(tmp_path / name, steady(100, start=start), audio_seconds=sound)
    report = decode(path)[1]
    assert report.missing_fraction == pytest.approx(0, abs=0.01)
    assert report.decoded_seconds == pytest.approx(4, abs=0.1)
    lead = start if sound else 0
    assert report.end_seconds == pytest.approx(lead + 4, abs=0.1)


@pytest.mark.parametrize(("name", "start"), [("late.mkv", 6), ("late.mp4", 3)])
def test_what_is_missing_behind_a_late_start_is_counted(tmp_path, name, start):
    fast = {"movflags": "faststart"} if name.endswith("mp4") else {}
    path = tmp_path / name
    write_video(path, steady(100, start=start), audio_seconds=12, container_options=fast)
    with av.open(str(path)) as container:
        half = [packet.pos for packet in container.demux(video=0) if packet.size][50]
    cut(path, half / path.stat().st_size)
    report = decode(path)[1]
    missing = 4 - report.decoded_seconds
    assert missing == pytest.approx(2, abs=0.3)
    whole = report.end_seconds + missing
    assert report.missing_fraction == pytest.approx(missing / whole, abs=0.02)


def test_an_edit_list_that_shows_a_part_behind_an_empty_edit_misses_nothing(tmp_path):
    path = write_video(tmp_path / "edits.mp4", steady(75, start=3))
    data = bytearray(path.read_bytes())
    # Of 16 bytes of head and two entries of 12: durations in milliseconds, then a time of media.
    second = data.index(b"elst") + 12 + 12
    assert data[second : second + 4] == (3000).to_bytes(4)
    data[second : second + 4] = (2000).to_bytes(4)
    path.write_bytes(data)
    report = decode(path)[1]
    assert (report.num_frames, report.packets) == (20, 75)
    assert report.missing_fraction == 0


# Last pictures


def standing(path: Path, *, tagged: bool = False, **options) -> Path:
    """2 s of pictures in a Matroska file that declares 20 s."""
    write_video(path, steady(50), **options)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x44\x89\x88") + 3  # Duration, a float of 8 bytes, in milliseconds
    data[at : at + 8] = np.array(20_000.0, ">f8").tobytes()
    if not tagged:
        name = data.index(b"DURATION")
        data[name : name + 8] = b"WHATEVER"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("name", "codec"), [("a.mkv", "libx264"), ("a.webm", "libvpx")])
def test_the_last_picture_of_a_whole_file_stands_to_its_end(tmp_path, name, codec):
    path = standing(tmp_path / name, codec=codec)
    report = decode(path)[1]
    assert (report.num_frames, report.missing_fraction) == (200, 0)
    assert numbers(path) == [*nearest(steady(50), 10, 2), *[49] * 180]


def test_empty_packets_at_the_end_leave_the_last_picture_standing(plain_video):
    """As those of Theora, which say "as before"."""
    with open_video(plain_video) as container:
        stream = best_stream(container)
        reader = PacketReader(container, stream, usual_step=512)
        for second in (1, 4, 6):
            empty = av.Packet(0)
            empty.stream, empty.time_base = stream, stream.time_base
            empty.pts, empty.duration = round(second / stream.time_base), 512
            reader._note(empty)
    assert reader.last_picture_until * stream.time_base == pytest.approx(6.04, abs=0.01)


def test_where_the_stream_has_its_own_end_the_sound_goes_on_alone(tmp_path):
    path = write_video(tmp_path / "sound.mkv", steady(50), audio_seconds=6)
    assert decode(path)[1].num_frames == 20
    data = path.read_bytes().replace(b"DURATION", b"WHATEVER")
    path.write_bytes(data)
    assert decode(path)[1].num_frames == 60


def test_the_last_picture_of_a_damaged_file_does_not_stand(tmp_path):
    path = standing(tmp_path / "cut.mkv", draw=noisy)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data[: len(data) // 2] + bytes(len(data) // 2)):
        path.write_bytes(damaged)
        report = decode(path)[1]
        assert report.num_frames < 15
        assert report.missing_fraction > 0.9


def test_a_declared_end_of_the_stream_is_believed(tmp_path):
    path = standing(tmp_path / "tagged.mkv", tagged=True)
    assert decode(path)[1].num_frames == 20
