"""Caption files as users bring them become raw rows, whatever their form and encoding."""

import csv
import random
from datetime import time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.formats.caption_sources import (
    CENTRE,
    RawCaption,
    is_subtitle,
    iterate_caption_ids,
    iterate_captions,
    read_caption_file,
)
from pipeline.formats.caption_times import parse_time


def rows_of(path):
    return [tuple(row)[:4] for row in iterate_captions(path)]


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
        ("c.csv", b"video_id,label\na,1\n", "no column start and text; found 'video_id, label'"),
        ("c.csv", b"", "found 'nothing'"),
        ("c.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not a caption table"),
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
    with pytest.raises(ValueError, match="no column start; found 'video_id, text'"):
        rows_of(tmp_path / "c.parquet")


def test_a_table_streams(tmp_path):
    """The first row is there before the last line is read: here the last line is broken."""
    (tmp_path / "c.json").write_text('{"a": {"start": [1], "end": [2], "text": ["x"]}, "b": ')
    rows = iterate_captions(tmp_path / "c.json")
    assert next(rows).text == "x"
    with pytest.raises(ValueError, match="not a whole JSON file"):
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
        ("a.csv", "video_path\na.mp4\n", "no column start and text"),
        ("a.json", "{'a': 1}", "not a JSON file"),
        ("a.vtt", "WEBVTT\n\n0\x01:00:01.000 --> 00:00:02.500\nx\n", "no line of times reads"),
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


WHISPER = """start\tend\ttext
0\t2000\tshe said
2000\t4000\t"put the eggs in
4000\t6000\tand whisk them
6000\t8000\twell" and off
8000\t9000\tadd "salt"
"""


def test_a_table_that_quotes_nothing_keeps_every_row(tmp_path):
    (tmp_path / "a.tsv").write_text(WHISPER)
    rows = read_caption_file(tmp_path / "a.tsv", "a")
    assert [(row.start, row.text) for row in rows] == [
        ("0", "she said"), ("2000", '"put the eggs in'), ("4000", "and whisk them"),
        ("6000", 'well" and off'), ("8000", 'add "salt"'),
    ]  # fmt: skip


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("seed", range(10))
def test_what_csv_writes_comes_back_whatever_is_in_it(tmp_path, delimiter, seed):
    draw = random.Random(seed)
    pieces = ['"', "\n", "\n\n", delimiter, "stir", " ", "'", "350", ",", "é"]
    texts = ["".join(draw.choices(pieces, k=draw.randint(1, 9))) + "x" for _ in range(30)]
    with open(tmp_path / "c.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=draw.choice(["\n", "\r\n"]))
        writer.writerow(["video_id", "start", "end", "text", "more"])
        writer.writerows([str(n), n, n + 1, text, ""] for n, text in enumerate(texts))
    rows = rows_of(tmp_path / "c.csv")
    assert rows == [(str(n), str(n), str(n + 1), text) for n, text in enumerate(texts)]


def test_a_quote_left_open_costs_no_other_row(tmp_path):
    rows = "".join(f"a,{n},{n + 1},stir {n}\n" for n in range(2000))
    (tmp_path / "c.csv").write_text('video_id,start,end,text\na,0,1,"mix\n' + rows)
    found = rows_of(tmp_path / "c.csv")
    assert found[0] == ("a", "0", "1", '"mix')
    assert found[1:] == [("a", str(n), str(n + 1), f"stir {n}") for n in range(2000)]


def test_a_text_longer_than_any_speech_is_none(tmp_path):
    (tmp_path / "c.csv").write_text('video_id,start,end,text\na,1,2,"' + "x" * 200_000)
    assert rows_of(tmp_path / "c.csv") == [("a", "1", "2", None)]


def test_a_row_with_too_many_fields_keeps_its_text_or_is_named(tmp_path, caplog):
    (tmp_path / "last.csv").write_text("video_id,start,end,text\na,1,2,salt, pepper, oil\n")
    assert rows_of(tmp_path / "last.csv") == [("a", "1", "2", "salt, pepper, oil")]
    lines = "".join(f"v{n},salt, oil,1,2\n" for n in range(4))
    (tmp_path / "first.csv").write_text("video_id,text,start,end\n" + lines + "b,stir,2,4\n")
    nothing = [(f"v{n}", None, None, None) for n in range(4)]
    assert rows_of(tmp_path / "first.csv") == [*nothing, ("b", "2", "4", "stir")]
    assert "first.csv, line 2: left out, for it has 5 fields under a header of 4" in caplog.text
    assert caplog.messages[-1].endswith("first.csv: 4 rows in all have more fields than its header")
    assert len(caplog.messages) == 4


def test_a_table_may_have_no_ends_or_only_middles(tmp_path):
    (tmp_path / "c.csv").write_text("video_id,start,text\na,1,stir\n")
    assert rows_of(tmp_path / "c.csv") == [("a", "1", "", "stir")]
    (tmp_path / "c.csv").write_text("vid,timestamp,text\na,1.5,stir\n")
    assert rows_of(tmp_path / "c.csv") == [("a", "1.5", CENTRE, "stir")]
    table = pa.table({"vid": ["a"], "timestamp": [1.5], "text": ["x"]})
    pq.write_table(table, tmp_path / "c.parquet")
    assert rows_of(tmp_path / "c.parquet") == [("a", 1.5, CENTRE, "x")]


def test_scores_travel_with_their_texts(tmp_path):
    text = "video_id,start,end,text,score\na,1,2,stir,0.5\na,2,3,fold,\n"
    (tmp_path / "c.csv").write_text(text)
    assert [row.score for row in iterate_captions(tmp_path / "c.csv")] == ["0.5", None]


def test_parquet_times_of_any_kind_are_plain_times(tmp_path):
    columns = {
        "video_id": ["a"],
        "start": [Decimal("1.50")],
        "end": [timedelta(hours=25, seconds=2.5)],
        "text": ["x"],
    }
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    (row,) = iterate_captions(tmp_path / "c.parquet")
    assert (parse_time(row.start), parse_time(row.end, 0.001)) == (1.5, 90002.5)
    pq.write_table(pa.table(columns | {"end": [time(0, 1, 2, 500_000)]}), tmp_path / "c.parquet")
    (row,) = iterate_captions(tmp_path / "c.parquet")
    assert parse_time(row.end, 0.001) == 62.5


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("video_id", 123.0, "numbers with a point, as 123.0"),
        ("video_id", b"a", "the column video_id holds bytes, as b'a'"),
        ("text", ["x", "y"], "the column text holds lists"),
        ("start", {"at": 1}, "the column start holds structures"),
    ],
)
def test_a_parquet_column_of_another_kind_is_refused_by_name(tmp_path, column, value, message):
    row = {"video_id": "a", "start": 1, "end": 2, "text": "x"} | {column: value}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path / "c.parquet")
