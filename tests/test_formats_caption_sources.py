"""Caption files as users bring them become raw rows, whatever their form and encoding."""

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.formats.caption_sources import (
    RawCaption,
    is_subtitle,
    iterate_caption_ids,
    iterate_captions,
    read_caption_file,
)


def rows_of(path):
    return [tuple(row) for row in iterate_captions(path)]


EXPECTED = [("a", "1", "2.5", "stir it"), ("b", "3", "4", "more, please")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", 'video_id,start,end,text\na,1,2.5,stir it\nb,3,4,"more, please"\n'),
        ("c.csv", 'end,start,task,text,video_id\n2.5,1,9,stir it,a\n4,3,9,"more, please",b\n'),
        ("c.csv", 'Video_ID , Start,END,text\na,1,2.5,stir it\nb,3,4,"more, please"\n'),
        ("c.csv", 'video_id;start;end;text\na;1;2.5;stir it\nb;3;4;"more, please"\n'),
        ("c.csv", 'video_id\tstart\tend\ttext\na\t1\t2.5\tstir it\nb\t3\t4\t"more, please"\n'),
        ("c.tsv", "video_id\tstart\tend\ttext\na\t1\t2.5\tstir it\nb\t3\t4\tmore, please\n"),
        ("c.csv", 'video_id,start,end,text\r\na,1,2.5,stir it\r\nb,3,4,"more, please"\r\n'),
        ("c.csv", 'video_id,start,end,text\ra,1,2.5,stir it\rb,3,4,"more, please"'),
        ("c.csv", 'video_id,start,end,text\n\na,1,2.5,st\0ir it\n\nb,3,4,"more, please"\n\n'),
        ("c.csv", 'video_id,start_seconds,end_seconds,text\na,1,2.5,stir it\nb,3,4,"more, please"'),
    ],
)
def test_a_table_reads_in_any_dress(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    assert rows_of(tmp_path / name) == EXPECTED


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_a_table_reads_in_any_encoding(tmp_path, encoding):
    text = "crème brûlée, œufs à la neige et pâte sablée: réchauffez doucement à feu très doux"
    body = f'video_id,start,end,text\na,1,2,"{text}"\n'
    mark = b"\xff\xfe" if encoding == "utf-16-le" else b""
    (tmp_path / "c.csv").write_bytes(mark + body.encode(encoding))
    assert rows_of(tmp_path / "c.csv") == [("a", "1", "2", text)]


def test_line_ends_within_quotes_stay_in_the_text(tmp_path):
    (tmp_path / "c.csv").write_bytes(b'video_id,start,end,text\na,1,2,"one\r\ntwo"\nb,3,4,x\n')
    assert rows_of(tmp_path / "c.csv") == [("a", "1", "2", "one\r\ntwo"), ("b", "3", "4", "x")]


@pytest.mark.parametrize("word", ["", "null", "NULL", "NA", "N/A", "nan", "NaN", "None", " nan "])
def test_a_missing_text_is_missing_and_no_word(tmp_path, word):
    (tmp_path / "c.csv").write_text(f"video_id,start,end,text\na,1,2,{word}\n")
    assert rows_of(tmp_path / "c.csv") == [("a", "1", "2", None)]


def test_nan_within_a_text_and_none_in_small_letters_are_words(tmp_path):
    (tmp_path / "c.csv").write_text("video_id,start,end,text\na,1,2,my nan bakes\na,2,3,none\n")
    assert [row[3] for row in rows_of(tmp_path / "c.csv")] == ["my nan bakes", "none"]


def test_a_short_row_is_a_row_with_empty_fields(tmp_path):
    (tmp_path / "c.csv").write_text("video_id,start,end,text\na,1\nb,3,4,x\n")
    assert rows_of(tmp_path / "c.csv") == [("a", "1", "", None), ("b", "3", "4", "x")]


def test_parquet_reads_with_its_types(tmp_path):
    table = pa.table(
        {"text": ["x", None], "n": [1, 2], "end": [2.0, None], "video_id": ["a", "b"],
         "start": [1, 2]}
    )  # fmt: skip
    pq.write_table(table, tmp_path / "c.parquet")
    assert rows_of(tmp_path / "c.parquet") == [("a", 1, 2.0, "x"), ("b", 2, None, None)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", b"video_id,label\na,1\n", "no column start and end and text; found 'video_id, l"),
        ("c.csv", b"", "found 'nothing'"),
        ("c.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a caption table"),
        ("c.csv", b'video_id,start,end,text\na,1,2,"' + b"x" * 200_000, "c.csv, line 2: not a"),
        ("c.csv", b"x" * 200_000, "c.csv, line 1: not a table: field larger than field limit"),
        ("c.parquet", b"video_id,start,end,text\n", "not a parquet file"),
        ("c.json", b"[1, 2]", "JSON object with a video id for each key"),
        ("c.json", b'{"a": {"start": [1], "end": [2], "te', "not a whole JSON file"),
        ("c.vtt", b"WEBVTT\n", "folder with a file for each video"),
    ],
)
def test_a_source_that_is_none_is_named_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        rows_of(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_without_the_columns_is_refused(tmp_path):
    pq.write_table(pa.table({"video_id": ["a"], "text": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="no column start and end; found 'video_id, text'"):
        rows_of(tmp_path / "c.parquet")


def test_a_table_streams(tmp_path):
    """The first row is there before the last line is read: here the last line is broken."""
    text = io.StringIO()
    csv.writer(text).writerows([["video_id", "start", "end", "text"], ["a", 1, 2, "x"]] * 1)
    (tmp_path / "c.csv").write_text(text.getvalue() + 'b,1,2,"' + "x" * 200_000)
    rows = iterate_captions(tmp_path / "c.csv")
    assert next(rows).text == "x"
    with pytest.raises(ValueError, match="not a table"):
        list(rows)


SRT = """1
00:00:01,000 --> 00:00:02,500
stir <i>it</i>
well

2
00:00:03,000 --> 00:00:04,000
7
"""
VTT = """WEBVTT - a title
Kind: captions

STYLE
::cue { color: papayawhip }

NOTE this is nothing
to be read

first cue
00:01.000 --> 00:02.500 align:start position:0%
stir <i>it</i>
well

NOTE 00:09.000 is no cue

second cue
00:00:03.000 --> 00:00:04.000
7
"""


@pytest.mark.parametrize(
    ("name", "text"), [("a.srt", SRT), ("a.vtt", VTT), ("a.srt", VTT), ("a.vtt", SRT)]
)
def test_subtitles_read_in_seconds_even_under_the_other_name(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert read_caption_file(tmp_path / name, "a") == [
        RawCaption("a", 1.0, 2.5, "stir <i>it</i>\nwell"), RawCaption("a", 3.0, 4.0, "7")
    ]  # fmt: skip


def test_a_line_with_two_inline_times_is_no_timing_line(tmp_path):
    (tmp_path / "a.vtt").write_text(
        "WEBVTT\n\n00:00:01.000 --> 00:00:02.000\n"
        "free<00:00:01.200><c> of</c><00:00:01.600><c> charge</c>\n"
    )
    rows = read_caption_file(tmp_path / "a.vtt", "a")
    assert rows == [RawCaption("a", 1.0, 2.0, "free<c> of</c><c> charge</c>")]


@pytest.mark.parametrize("name", ["a.csv", "a.vtt", "a.srt", "a.json"])
def test_an_empty_file_has_no_captions(tmp_path, name):
    (tmp_path / name).touch()
    assert read_caption_file(tmp_path / name, "a") == []


def test_a_file_of_one_video_needs_no_video_id(tmp_path):
    (tmp_path / "a.csv").write_text("start,end,text\n1,2,x\n")
    assert read_caption_file(tmp_path / "a.csv", "a") == [RawCaption("a", "1", "2", "x")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.srt", "<!DOCTYPE html>\n<p>Not found", "no timed text"),
        ("a.csv", "video_path\na.mp4\n", "no column start and end and text"),
        ("a.json", "{'a': 1}", "not a JSON file"),
        ("a.vtt", "WEBVTT\n\n0\x01:00:01.000 --> 00:00:02.500\nx\n", "not a caption file: invalid"),
        ("a.json", '{"error": "quota"}', "no captions in it"),
        ("a.json", f'[{{"start": {"9" * 5000}}}]', "not a JSON file: Exceeds the limit"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_caption_file(tmp_path / name, "a")
    assert name in str(caught.value)


def test_only_subtitles_bring_their_own_unit():
    assert [is_subtitle(f"a{s}") for s in (".vtt", ".SRT", ".csv", ".json", ".sjson")] == [
        True, True, False, False, False
    ]  # fmt: skip


def test_ids_of_any_source_come_once_in_its_order(tmp_path):
    (tmp_path / "c.csv").write_text("video_id,start,end,text\nb,1,2,x\na,1,2,x\nb,2,3,x\n,2,3,x\n")
    (tmp_path / "c.json").write_text('{"b": [{"start": 1, "end": 2, "text": "x"}], "a": []}')
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("b.en.srt", "b.csv", "a.vtt", "notes.txt"):
        (folder / name).touch()
    assert list(iterate_caption_ids(tmp_path / "c.csv")) == ["b", "a"]
    assert list(iterate_caption_ids(tmp_path / "c.json")) == ["b"]
    assert list(iterate_caption_ids(folder)) == ["a", "b"]
