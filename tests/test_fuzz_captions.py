"""Whatever bytes a caption file holds, they become rows or one line that names the file."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.caption_cleaning import clean_captions
from pipeline.formats.caption_sources import RawCaption, iterate_captions, read_caption_file
from tests.examples import captions_settings
from tests.fuzzing import damaged, read_or_refuse, replaced

CSV = 'video_id,start,end,text\na,1,2.5,"stir, it"\nb,3,4,crème brûlée\nb,0:04,1:00:05,x\n'
VTT = (
    "WEBVTT\n\nNOTE no\n\n1\n00:00:01.000 --> 00:00:02.500 align:start\n"
    "stir<00:00:01.200><c> it</c>\n"
    "\n00:03.000 --> 00:04.000\n&amp; rest\n"
)
SRT = "1\n00:00:01,000 --> 00:00:02,500\nstir <i>it</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n7\n"
SEGMENTS = [{"start": 1, "end": 2.5, "text": "stir it"}, {"start": 3, "duration": 1, "text": "é"}]
LISTS = {"start": [1, 3], "end": [2.5, 4], "text": ["stir it", "fold"]}
ONE_VIDEO = {
    ".csv": [CSV.encode(), CSV.encode("utf-16"), CSV.encode("cp1252")],
    ".tsv": [CSV.replace(",", "\t").encode()],
    ".vtt": [VTT.encode(), VTT.replace("\n", "\r\n").encode("utf-16")],
    ".srt": [SRT.encode(), SRT.encode("utf-8-sig")],
    ".json": [json.dumps(SEGMENTS).encode(), json.dumps(LISTS, ensure_ascii=False).encode()],
    ".sjson": [json.dumps({"segments": SEGMENTS}).encode()],
}
MANY_VIDEOS = {
    ".csv": ONE_VIDEO[".csv"],
    ".tsv": ONE_VIDEO[".tsv"],
    ".txt": ONE_VIDEO[".csv"],
    ".json": [json.dumps({"a": SEGMENTS, "b": LISTS, "c": {"segments": SEGMENTS}}).encode()],
}
WORDS = [b"1", b"2.5", b"3", b"start", b"end", b"text", b'"', b",", b"\n", b":", b"[", b"{", b"\\"]
HOSTILE = [
    b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"9" * 5000, b"-1", b"null", b"true", b"\\ud800",
    b'"', b"\0", b"\r", b"\xff\xfe", b"[" * 3000, b'{"a":' * 3000, b"x" * 200_000,
    b"<b " + b" " * 40_000, b"99999999999:00:00.000", b"-->", b"&#x110000;", b"&#0;",
    b"\xe2\x80\xae", b"\xd9\xa3", b"{\\",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Each example overwrites the file of the one before it."""
    return tmp_path_factory.mktemp("fuzz")


def any_bytes(wholes: list[bytes]) -> st.SearchStrategy[bytes]:
    return damaged(wholes) | replaced(wholes, WORDS, HOSTILE) | st.binary(max_size=300)


def check_rows(rows: list[RawCaption] | None) -> None:
    """Rows of any content are cleaned; what is kept can be stored, and says when it is."""
    for row in rows or []:
        assert isinstance(row.video_id, str)
        assert row.text is None or isinstance(row.text, str | int | float | bool | list | dict)
    counts: Counter[str] = Counter()
    settings = captions_settings(offset_seconds=0.5, min_score=0.5)
    cleaned = read_or_refuse(
        lambda: clean_captions(rows or [], settings, seconds_per_unit=1.0, counts=counts),
        naming=None,
    )
    assert counts["read"] == len(rows or [])
    assert counts["kept"] == len(cleaned)
    for caption in cleaned:
        assert 0 <= caption.start_seconds < caption.end_seconds < math.inf
        assert caption.text.encode("utf-8").decode().split()


@pytest.mark.parametrize("suffix", ONE_VIDEO)
@given(data=st.data())
def test_the_file_of_one_video(folder, suffix, data):
    path = folder / f"one{suffix}"
    path.write_bytes(data.draw(any_bytes(ONE_VIDEO[suffix])))
    check_rows(read_or_refuse(lambda: read_caption_file(path, "a"), naming=path))


@pytest.mark.parametrize("suffix", MANY_VIDEOS)
@given(data=st.data())
def test_the_file_of_many_videos(folder, suffix, data):
    path = folder / f"many{suffix}"
    path.write_bytes(data.draw(any_bytes(MANY_VIDEOS[suffix])))
    check_rows(read_or_refuse(lambda: list(iterate_captions(path)), naming=path))


@pytest.fixture(scope="module")
def tables(folder) -> list[bytes]:
    """Parquet files of captions, of plain and of odd types."""
    plain = {"video_id": ["a", "b"], "start": [1.0, 3.0], "end": [2.5, None], "text": ["x", "é"]}
    odd = plain | {"video_id": [1, 2], "start": [{"a": 1}, None], "text": [b"\xff", b"x"]}
    found = []
    for number, (columns, compression) in enumerate(
        [(plain, "zstd"), (plain, "none"), (odd, "snappy")]
    ):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", compression=compression)
        found.append((folder / f"{number}.parquet").read_bytes())
    return found


@given(data=st.data())
def test_a_parquet_of_captions(folder, tables, data):
    path = folder / "many.parquet"
    path.write_bytes(data.draw(damaged(tables) | st.binary(max_size=300)))
    check_rows(read_or_refuse(lambda: list(iterate_captions(path)), naming=path))


times = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
)
clocks = st.from_regex(r"\d{1,400}:\d\d?(:\d\d?([.,]\d*)?)?", fullmatch=True)
markup = st.text(st.sampled_from("<>/bcx {}\\&;#1[] \n'"), max_size=60)


@given(
    st.lists(
        st.builds(RawCaption, st.just("a"), times | clocks, times | clocks, st.text() | markup)
    )
)
def test_rows_of_any_content_are_cleaned(rows):
    check_rows(rows)
