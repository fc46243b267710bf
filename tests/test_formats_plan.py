"""The two lists of a shard: round trips, equal bytes, and files that are none."""

import pytest

from pipeline.formats.plan import (
    PlannedCaptions,
    PlannedVideo,
    Unmatched,
    read_planned_captions,
    read_planned_videos,
    read_unmatched,
    write_planned_captions,
    write_planned_videos,
    write_unmatched,
)

VIDEOS = [
    PlannedVideo("a", "v/a b.mp4", "val", 12, 1_700_000_000_123_456_789),
    PlannedVideo("é\u2028%", "", "", -1, -1),
]
CAPTIONS = [PlannedCaptions("a", "c/a.csv", 5, "17"), PlannedCaptions("", "p/0.csv", 9, "ab" * 32)]


def test_videos_round_trip_with_the_same_bytes_and_size(tmp_path):
    size = write_planned_videos(tmp_path / "0.tsv", VIDEOS)
    first = (tmp_path / "0.tsv").read_bytes()
    assert read_planned_videos(tmp_path / "0.tsv") == VIDEOS
    assert write_planned_videos(tmp_path / "0.tsv", VIDEOS) == size == len(first)
    assert (tmp_path / "0.tsv").read_bytes() == first


def test_captions_round_trip(tmp_path):
    size = write_planned_captions(tmp_path / "0.captions", CAPTIONS)
    assert read_planned_captions(tmp_path / "0.captions") == CAPTIONS
    assert (tmp_path / "0.captions").stat().st_size == size
    write_planned_captions(tmp_path / "0.captions", [])
    assert read_planned_captions(tmp_path / "0.captions") == []


def test_a_changed_time_changes_the_bytes(tmp_path):
    write_planned_videos(tmp_path / "0.tsv", VIDEOS)
    before = (tmp_path / "0.tsv").read_bytes()
    write_planned_videos(tmp_path / "0.tsv", [PlannedVideo("a", "v/a b.mp4", "val", 12, 5)])
    assert (tmp_path / "0.tsv").read_bytes() != before


@pytest.mark.parametrize("read", [read_planned_videos, read_planned_captions])
@pytest.mark.parametrize("text", ["", "video_id,path\n", "#bagpipe-plan-1\tpath"])
def test_foreign_and_cut_files_are_refused(tmp_path, read, text):
    (tmp_path / "0").write_text(text)
    with pytest.raises(ValueError, match="--forcerun plan"):
        read(tmp_path / "0")


def test_what_is_unmatched_is_told_in_a_sentence_for_each_side(tmp_path):
    both = Unmatched(
        unit="caption files", captions=1200, caption_names=["x.vtt", "é"], videos=1, video_ids=["a"]
    )
    write_unmatched(tmp_path, both)
    assert read_unmatched(tmp_path) == both
    files = "1,200 caption files belong to no video, as 'x.vtt', 'é'"
    assert both.sentences() == [files, "1 videos have no captions, as 'a'"]
    none = Unmatched(unit="captions", captions=0, caption_names=[], videos=0, video_ids=[])
    assert none.sentences() == []


@pytest.mark.parametrize("text", ["[]", "{}", '{"version": "plan-unmatched-1", "videos": 1}'])
def test_what_is_no_whole_list_of_the_unmatched_is_refused(tmp_path, text):
    (tmp_path / "unmatched.json").write_text(text)
    with pytest.raises(ValueError, match=r"unmatched\.json is not a .*--forcerun plan"):
        read_unmatched(tmp_path)


def test_a_row_with_a_field_too_few_is_refused(tmp_path):
    write_planned_captions(tmp_path / "0", CAPTIONS)
    (tmp_path / "0").write_text((tmp_path / "0").read_text() + "a\tb\n")
    with pytest.raises(ValueError, match="needs 4 fields"):
        read_planned_captions(tmp_path / "0")


@pytest.mark.parametrize("number", ["", "x", "²", "1.0", "9" * 5000])
def test_a_size_that_is_no_number_is_named(tmp_path, number):
    write_planned_videos(tmp_path / "0.tsv", VIDEOS)
    text = (tmp_path / "0.tsv").read_text()
    (tmp_path / "0.tsv").write_text(text.replace("\t12\t", f"\t{number}\t"))
    with pytest.raises(ValueError, match=r"0\.tsv: .* is not a whole number: run snakemake"):
        read_planned_videos(tmp_path / "0.tsv")


def test_a_plan_that_is_no_text_is_named(tmp_path):
    (tmp_path / "0.tsv").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"0\.tsv is not UTF-8 text"):
        read_planned_videos(tmp_path / "0.tsv")
