"""Captions in JSON read in every known shape, and streams hold one video at a time."""

import io
import json
import math
import random

import pytest

from pipeline.formats import caption_json
from pipeline.formats.caption_json import iterate_json_captions, read_json_captions, segments_of
from pipeline.formats.caption_times import parse_time

ROWS = [(1, 2.5, "stir", None), (3, 4, "wait", None)]


@pytest.mark.parametrize(
    "value",
    [
        [{"start": 1, "end": 2.5, "text": "stir"}, {"start": 3, "end": 4, "content": "wait"}],
        {"start": [1, 3], "end": [2.5, 4], "text": ["stir", "wait"], "extra": []},
        {"text": "stir wait", "language": "en", "segments": [
            {"id": 0, "start": 1, "end": 2.5, "text": "stir"},
            {"id": 1, "start": 3, "end": 4, "text": "wait"}]},
        [{"start": 1, "duration": 1.5, "text": "stir"},
         {"start": 3, "duration": 1, "text": "wait"}],
    ],
)  # fmt: skip
def test_every_shape_reads_alike(tmp_path, value):
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps(value), encoding="utf-8")
    (tmp_path / "all.json").write_text(json.dumps({"a": value, "b": value}), encoding="utf-8-sig")
    assert read_json_captions(tmp_path / "a.json") == ROWS
    expected = [("a", row) for row in ROWS] + [("b", row) for row in ROWS]
    assert list(iterate_json_captions(tmp_path / "all.json")) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "no captions"),
        ({"text": "x"}, "no captions"),
        ({"start": [1], "end": [2, 3], "text": ["x"]}, "differ in length: 1, 2, 1"),
        ({"start": 1, "end": 2, "text": "x"}, "must be lists"),
        ([{"begin": 1, "end": 2, "text": "x"}, "y"], "item 0"),
    ],
)
def test_other_shapes_are_refused(value, message):
    with pytest.raises(ValueError, match=message):
        segments_of(value)


def test_one_odd_video_of_many_is_named_and_costs_no_other(tmp_path, caplog):
    odd = {"b": {"start": 1}, "c": {}, "d": 7, "e": {"start": [1], "end": [2, 3], "text": ["x"]}}
    odd |= {f"more {n}": "text" for n in range(8)}
    good = [{"start": start, "end": end, "text": text} for start, end, text, _ in ROWS]
    videos = {"a": good, "none": None, **odd, "z": good}
    (tmp_path / "c.json").write_text(json.dumps(videos))
    found = list(iterate_json_captions(tmp_path / "c.json"))
    rows = [("a", row) for row in ROWS], [("z", row) for row in ROWS]
    nothing = [(name, (None,) * 4) for name in odd]
    assert found == [*rows[0], *nothing, *rows[1]]
    said = caplog.messages
    assert said[0].startswith("no captions for video 'b': ")
    assert "differ in length: 1, 2, 1" in said[3]
    assert len(said) == 11
    assert said[-1].startswith("no captions for 12 videos of ")


def test_the_stream_names_the_video_it_stumbled_over(tmp_path):
    (tmp_path / "c.json").write_text('{"a": [], "b": [')
    with pytest.raises(ValueError, match="not a whole JSON file after video 'a'"):
        list(iterate_json_captions(tmp_path / "c.json"))


def test_nan_as_pandas_writes_it_becomes_null_and_stays_within_strings(tmp_path):
    value = {"start": [1, math.nan], "end": [-math.inf, 2], "text": ["NaN, she said", math.nan]}
    (tmp_path / "c.json").write_text(json.dumps({"a": value}))
    rows = [row for _, row in iterate_json_captions(tmp_path / "c.json")]
    assert rows == [(1, None, "NaN, she said", None), (None, 2, None, None)]


def _without_nan(value):
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 1000])
def test_blocks_may_end_anywhere(monkeypatch, block):
    draw = random.Random(block)
    texts = ['NaN, "NaN"', "\\", 'end\\"', "Infinity", "é", "", "w" * 50, None, math.nan]
    value = {
        f"v{i} NaN": [{"start": draw.choice([1, math.nan]), "text": draw.choice(texts)}]
        for i in range(40)
    }
    raw = json.dumps(value, ensure_ascii=False).encode()
    monkeypatch.setattr(caption_json, "_BLOCK", block)
    filtered = io.BufferedReader(caption_json._WithoutNaN(io.BytesIO(raw))).read()
    assert json.loads(filtered) == _without_nan(value)


def test_memory_is_bounded_by_one_video(tmp_path):
    """Of a long file, only a little is read before the first caption comes out."""
    one = {"start": [1.0] * 50, "end": [2.0] * 50, "text": ["word"] * 50}
    with open(tmp_path / "c.json", "w") as file:
        file.write("{" + ", ".join(f'"v{i}": {json.dumps(one)}' for i in range(3000)) + "}")
    with open(tmp_path / "c.json", "rb") as file:
        stream = caption_json._WithoutNaN(file)
        next(caption_json.ijson.kvitems(stream, "", use_float=True))
        assert file.tell() < 300_000 < (tmp_path / "c.json").stat().st_size


def test_a_string_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(caption_json, "_LONGEST_STRING", 100_000)
    (tmp_path / "c.json").write_text('{"a": "' + "x" * 1_000_000)
    with pytest.raises(ValueError, match="a string longer than 100,000 bytes"):
        list(iterate_json_captions(tmp_path / "c.json"))


def test_a_duration_on_an_integer_beyond_all_floats_is_no_end():
    rows = segments_of([{"start": 10**400, "duration": 1.5, "text": "x"}])
    assert rows == [(10**400, None, "x", None)]


@pytest.mark.parametrize(
    ("value", "ends"),
    [
        ([{"start": 1, "dur": "1.5", "text": "stir"}, {"start": "3", "dur": 1, "text": "wait"}],
         [2.5, 4]),
        ([{"start": "00:01", "duration": "00:01.5", "text": "stir"},
          {"start": "0:00:03", "duration": "1:00", "text": "wait"}], [2.5, 63]),
        ({"start": [1, 3], "text": ["stir", "wait"]}, [None, None]),
        ({"start": [1, 3], "end": [2.5, 4], "text": [["stir"], ["wait"]]}, [2.5, 4]),
        ([{"start": 1, "end": 2.5, "text": "stir"}, {"text": "lost"}, 7, None,
          {"start": 3, "end": 4, "text": "wait"}], [2.5, 4]),
    ],
)  # fmt: skip
def test_shapes_of_today_keep_each_caption(value, ends):
    rows = segments_of(value)
    found = [(parse_time(start), parse_time(end), text) for start, end, text, _ in rows if text]
    assert found == [(1, ends[0], "stir"), (3, ends[1], "wait")]
    assert [row for row in rows if not row[2]] == [(None,) * 4] * (len(rows) - 2)


@pytest.mark.parametrize(
    "value",
    [
        {"start": [1], "end": [2], "text": [[["stir", 0.5], ["fold", 0.25]]]},
        {"start": [1], "end": [2], "text": [["stir", "fold"]], "score": [[0.5, 0.25]]},
        [{"start": 1, "end": 2, "text": [["stir", 0.5], ["fold", 0.25]]}],
    ],
)
def test_a_span_may_have_several_texts_with_scores(value):
    assert segments_of(value) == [(1, 2, "stir", 0.5), (1, 2, "fold", 0.25)]


def test_a_file_of_no_known_shape_is_refused_as_a_whole(tmp_path):
    (tmp_path / "c.json").write_text('{"a": {"begin": [1]}, "b": {"begin": [2]}, "c": []}')
    with pytest.raises(ValueError, match="none of its 2 videos has captions of a known shape: no"):
        list(iterate_json_captions(tmp_path / "c.json"))
