"""Splitting a captions source: bounded memory, content addresses, nothing read twice."""

import csv
import json
import os

import pytest

from pipeline import caption_parts
from pipeline.caption_parts import REMOVED, remove_other_parts, split_captions
from pipeline.formats.caption_sources import RawCaption, iterate_captions

SHARD_OF = {"a": 0, "b": 0, "c": 1}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "all.csv"
    rows = [["c", 9, 10, "late, indeed"], ["a", 1, 2, 'a "quote"\nand a line'], ["q", 1, 2, "x"]]
    rows += [["b", "", "nan", None], ["a", 3, 4, "more"], ["q", 2, 3, "y"], ["r", 1, 2, "x"]]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["video_id", "start", "end", "text"], *rows])
    return path


def part_rows(folder, split, shard):
    return [row for part in split.sources(folder, shard) for row in iterate_captions(part.path)]


def test_texts_with_odd_line_ends_and_beyond_reason_survive_the_split(tmp_path):
    value = {"start": [1, 2, 3, 4], "end": [2, 3, 4, 5]}
    value["text"] = ["one\rtwo", "three\r\nfour", "x" * 150_000, "five"]
    (tmp_path / "all.json").write_text(json.dumps({"a": value}))
    split = split_captions(tmp_path / "all.json", SHARD_OF, tmp_path / "parts")
    rows = part_rows(tmp_path / "parts", split, 0)
    assert [row.text for row in rows] == ["one\ntwo", "three\nfour", None, "five"]
    assert [(row.start, row.end) for row in rows] == [(str(n), str(n + 1)) for n in range(1, 5)]


@pytest.mark.parametrize("buffered", [1, 2, 100])
def test_rows_reach_their_shard_in_order_whatever_the_buffer(
    tmp_path, source, monkeypatch, buffered
):
    monkeypatch.setattr(caption_parts, "_BUFFERED_ROWS", buffered)
    folder = tmp_path / "parts"
    split = split_captions(source, SHARD_OF, folder)
    assert part_rows(folder, split, 0) == [
        RawCaption("a", "1", "2", 'a "quote"\nand a line'), RawCaption("b", "", "nan", None),
        RawCaption("a", "3", "4", "more"),
    ]  # fmt: skip
    assert part_rows(folder, split, 1) == [RawCaption("c", "9", "10", "late, indeed")]
    assert split.sources(folder, 2) == []
    assert (split.rows, split.videos, split.foreign_rows) == (4, 3, 3)
    assert split.foreign_ids == ["q", "r"]
    assert (split.silent_videos, split.silent_ids) == (0, [])
    assert not (folder / ".split").exists()


def test_an_unchanged_source_is_not_read_again(tmp_path, source, monkeypatch):
    first = split_captions(source, SHARD_OF, tmp_path / "parts")
    monkeypatch.setattr(caption_parts, "iterate_captions", lambda path: pytest.fail("read again"))
    assert split_captions(source, SHARD_OF, tmp_path / "parts") == first


@pytest.mark.parametrize(
    ("written", "ids"), [("cr\u00e8me", ["cre\u0300me"]), ("cre\u0300me", ["x", "cr\u00e8me"])]
)
def test_an_id_in_another_unicode_form_finds_its_captions(tmp_path, written, ids):
    (tmp_path / "all.csv").write_text(f"video_id,start,end,text\n{written},1,2,x\n")
    split = split_captions(tmp_path / "all.csv", dict.fromkeys(ids, 0), tmp_path / "parts")
    assert [row.video_id for row in part_rows(tmp_path / "parts", split, 0)] == ids[-1:]
    assert (split.foreign_rows, split.silent_ids) == (0, ids[:-1])


def test_captions_of_removed_videos_are_left_out_and_of_no_other_id(tmp_path, source):
    shard_of = {"a": 0, "b": REMOVED, "c": 1, "d": 1}
    split = split_captions(source, shard_of, tmp_path / "parts")
    assert [row.video_id for row in part_rows(tmp_path / "parts", split, 0)] == ["a", "a"]
    assert (split.rows, split.foreign_rows) == (3, 3)
    assert (split.silent_videos, split.silent_ids) == (1, ["d"])


@pytest.mark.parametrize("what", ["time", "assignment", "part", "memory"])
def test_any_change_reads_it_again(tmp_path, source, what):
    folder, shard_of = tmp_path / "parts", dict(SHARD_OF)
    first = split_captions(source, shard_of, folder)
    if what == "time":
        os.utime(source, ns=(1, 1))
    elif what == "assignment":
        shard_of["q"] = 1
    elif what == "part":
        next(folder.glob("*.csv")).unlink()
    else:
        (folder / caption_parts.MEMORY_FILE).write_text('{"identity": 7')
    again = split_captions(source, shard_of, folder)
    assert (again == first) == (what != "assignment")
    assert len(part_rows(folder, again, 0)) == 3
    assert len(part_rows(folder, again, 1)) == (3 if what == "assignment" else 1)


def test_a_changed_row_rewrites_the_part_of_its_shard_alone(tmp_path, source):
    folder = tmp_path / "parts"
    first = split_captions(source, SHARD_OF, folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.csv")}
    source.write_text(source.read_text().replace("late, indeed", "later still"))
    again = split_captions(source, SHARD_OF, folder)
    assert again.parts["0"] == first.parts["0"]
    assert again.parts["1"] != first.parts["1"]
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.csv")}
    assert before.items() <= after.items(), "an unchanged part was written again"
    assert len(after) == len(before) + 1


def test_a_source_that_breaks_half_way_leaves_the_parts_as_they_were(tmp_path, source):
    folder = tmp_path / "parts"
    split_captions(source, SHARD_OF, folder)
    before = sorted(folder.iterdir())
    broken = tmp_path / "broken.json"
    broken.write_text('{"a": [{"start": 1, "end": 2, "text": "x"}], "b": [')
    with pytest.raises(ValueError, match="not a whole JSON file after video 'a'"):
        split_captions(broken, SHARD_OF, folder)
    assert sorted(folder.iterdir()) == before


def test_scratch_files_of_a_killed_run_are_no_part_of_the_next(tmp_path, source):
    folder = tmp_path / "parts"
    first = split_captions(source, SHARD_OF, tmp_path / "clean")
    (folder / ".split").mkdir(parents=True)
    (folder / ".split" / "0.csv").write_text("video_id,start,end,text\na,1,2,stale\n")
    assert split_captions(source, SHARD_OF, folder).parts == first.parts


def test_parts_that_nobody_names_are_removed_and_nothing_else(tmp_path, source):
    folder = tmp_path / "parts"
    split = split_captions(source, SHARD_OF, folder)
    (folder / f"{'0' * 64}.csv").touch()
    (folder / "mine.csv").touch()
    remove_other_parts(folder, split)
    named = {f"{digest}.csv" for digest, _ in split.parts.values()}
    assert {p.name for p in folder.iterdir()} == named | {"mine.csv", "source.json"}
    remove_other_parts(folder, None)
    assert {p.name for p in folder.iterdir()} == {"mine.csv"}
    remove_other_parts(tmp_path / "none", None)


def test_half_a_surrogate_pair_does_not_stop_the_split(tmp_path):
    (tmp_path / "c.json").write_text(
        json.dumps({"a": [{"start": 1, "end": 2, "text": "x \ud83d"}]})
    )
    split = split_captions(tmp_path / "c.json", SHARD_OF, tmp_path / "parts")
    (row,) = part_rows(tmp_path / "parts", split, 0)
    assert row.text.startswith("x")
