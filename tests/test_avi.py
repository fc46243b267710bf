"""Empty chunks of AVI files: in the middle libav sees them, at the end only the index does."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.avi import empty_chunks_at_end
from tests.fuzzing import bounded_memory, damaged
from tests.video_oracles import decode, numbers
from tests.videos import write_video


def standing(path: Path, *, audio_seconds: float = 0) -> Path:
    """Frames at 0, 1, ... 5 and 49 of 25 a second, whose gap the writer fills with empty chunks;
    then the last one is emptied too, which leaves 44 at the end.
    """
    frames = {"codec": "mjpeg", "pixels": "yuvj420p", "ticks": 25, "audio_seconds": audio_seconds}
    write_video(path, [k / 25 for k in (0, 1, 2, 3, 4, 5, 49)], **frames)
    data = bytearray(path.read_bytes())
    last = data.rindex(b"00dc")  # its entry of the index: name, flags, offset, size
    _, _, size = struct.unpack("<3I", data[last + 4 : last + 16])
    chunk = data.rindex(b"00dc" + struct.pack("<I", size), 0, data.rindex(b"idx1"))
    data[chunk : chunk + 4] = b"JUNK"
    data[last + 12 : last + 16] = bytes(4)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("sound", [0, 2])
def test_the_last_picture_stands_as_long_as_the_index_says(tmp_path, sound):
    path = standing(tmp_path / "standing.avi", audio_seconds=sound)
    assert empty_chunks_at_end(path, 0) == 44
    assert empty_chunks_at_end(path, 1) == 0
    report = decode(path)[1]
    assert (report.packets, report.bad_packets, report.missing_fraction) == (6, 0, 0)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert report.end_seconds == pytest.approx(float(stream.duration * stream.time_base))
    assert report.end_seconds == pytest.approx(2, abs=0.1)
    assert numbers(path)[3:] == [5] * (report.num_frames - 3)


def test_what_a_cut_file_lacks_is_missing(tmp_path):
    whole = standing(tmp_path / "cut.avi")
    data = whole.read_bytes()
    whole.write_bytes(data[: data.rindex(b"idx1")])
    assert empty_chunks_at_end(whole, 0) == 0
    assert decode(whole)[1].missing_fraction > 0.8


def riff(*sizes: int) -> bytes:
    """An AVI file with an odd chunk and an index of chunks of these sizes."""
    index = b"".join(struct.pack("<4s3I", b"00dc", 16, 4, size) for size in sizes)
    body = b"AVI LIST" + struct.pack("<I", 3) + b"abc\0idx1" + struct.pack("<I", len(index)) + index
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("data", "empty"),
    [
        (riff(5, 0, 7, 0, 0), 2),
        (riff(5, 0, 7), 0),
        (riff(0, 0), 0),
        (riff(), 0),
        (riff(5, 0, 0)[:-3], 1),
        (b"", 0),
        (b"RIFF", 0),
        (bytes(10_000), 0),
    ],
)
def test_entries_are_counted_from_the_end(tmp_path, data, empty):
    (tmp_path / "a.avi").write_bytes(data)
    assert empty_chunks_at_end(tmp_path / "a.avi", 0) == empty


@given(data=damaged([riff(5, 0, 7, 0, 0), riff(0), riff()]) | st.binary(max_size=99))
def test_any_bytes_have_a_number_of_empty_chunks(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.avi"
    path.write_bytes(data)
    with bounded_memory():
        assert 0 <= empty_chunks_at_end(path, 0) <= len(data) / 16
