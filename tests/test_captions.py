"""The captions stage: a shard's sources become one table, and all tables one summary."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from pipeline.captions import covered_seconds, main
from pipeline.formats.caption_summary import read_caption_summary
from pipeline.formats.captions import Caption, read_captions
from pipeline.formats.files import sha256_of_file
from pipeline.formats.plan import PlannedCaptions, write_planned_captions, write_planned_videos
from tests.examples import captions_settings

SETTINGS = asdict(captions_settings())


@pytest.fixture
def clean(tmp_path):
    """Write files and clean them as one shard; return (captions, counts)."""

    def run(files, *, shard="00000", **settings):
        sources = []
        for name, content in files.items():
            path = tmp_path / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            video_id = "" if name.startswith("part") else path.name.split(".")[0]
            sources.append(PlannedCaptions(video_id, str(path), path.stat().st_size, "0"))
        write_planned_captions(tmp_path / "plan" / f"{shard}.captions", sources)
        write_planned_videos(tmp_path / "plan" / f"{shard}.tsv", [])
        (tmp_path / "settings.json").write_text(json.dumps(SETTINGS | settings))
        output = tmp_path / "captions" / f"{shard}.parquet"
        main(["--plan", str(tmp_path / "plan" / f"{shard}.captions"), "--settings",
              str(tmp_path / "settings.json"), "--output", str(output)])  # fmt: skip
        return read_captions(output)

    return run


def test_every_form_becomes_one_table(clean):
    captions, counts = clean(
        {
            "part.csv": "video_id,start,end,text\nz,5,6,last\np,1,2,first\nz,3,4,third\n",
            "c.csv": "start,end,text\n1,2,from a table\n",
            "v.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\nfrom web\nvtt\n",
            "s.srt": "1\n00:00:01,000 --> 00:00:02,000\nfrom srt\n",
            "j.json": '{"segments": [{"start": 1, "end": 2, "text": "from json"}]}',
        }
    )
    assert captions == [
        Caption("c", 1, 2, "from a table"), Caption("j", 1, 2, "from json"),
        Caption("p", 1, 2, "first"), Caption("s", 1, 2, "from srt"),
        Caption("v", 1, 2, "from web vtt"), Caption("z", 3, 4, "third"),
        Caption("z", 5, 6, "last"),
    ]  # fmt: skip
    assert counts == {"read": 7, "kept": 7, "mended_whitespace": 1}


def test_unit_and_offset_reach_tables_and_json_and_the_offset_subtitles(clean):
    captions, _ = clean(
        {
            "c.csv": "start,end,text\n1000,2000,x\n",
            "j.sjson": '{"start": [1000], "end": [2000], "text": ["x"]}',
            "s.srt": "1\n00:00:01,000 --> 00:00:02,000\nx\n",
        },
        unit="milliseconds",
        offset_seconds=0.5,
    )
    assert [(c.start_seconds, c.end_seconds) for c in captions] == [(1.5, 2.5)] * 3


def test_rolling_is_mended_on_request(clean):
    files = {"r.csv": "start,end,text\n0,1,one two three four\n1,2,one two three four five\n"}
    assert [c.text for c in clean(files)[0]] == ["one two three four", "five"]
    captions, counts = clean(files, mend_rolling=False)
    assert [c.text for c in captions] == ["one two three four", "one two three four five"]
    assert counts == {"read": 2, "kept": 2}


def test_a_bad_file_is_counted_and_named_and_the_rest_is_kept(clean, caplog, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    files = {
        "good.csv": "start,end,text\n1,2,x\n",
        "web.srt": "<!DOCTYPE html>\n<p>Not found",
        "pic.csv": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        "bad.json": "{",
        "empty.vtt": "",
    }
    captions, counts = clean(files)
    assert captions == [Caption("good", 1, 2, "x")]
    assert counts == {"read": 1, "kept": 1, "unreadable_file": 3, "empty_file": 1}
    for name in ("web.srt", "pic.csv", "bad.json"):
        assert name in caplog.text


def test_a_file_that_vanished_since_the_plan_is_counted(tmp_path, clean, caplog):
    clean({})
    source = PlannedCaptions("a", str(tmp_path / "gone.csv"), 5, "0")
    write_planned_captions(tmp_path / "plan" / "00000.captions", [source])
    output = tmp_path / "captions" / "00000.parquet"
    main(["--plan", str(tmp_path / "plan" / "00000.captions"), "--settings",
          str(tmp_path / "settings.json"), "--output", str(output)])  # fmt: skip
    assert read_captions(output) == ([], {"unreadable_file": 1})
    assert "gone.csv" in caplog.text


def test_a_part_that_vanished_stops_the_shard_in_one_line(tmp_path, clean):
    clean({})
    part = PlannedCaptions("", str(tmp_path / "part.csv"), 5, "ab" * 32)
    write_planned_captions(tmp_path / "plan" / "00000.captions", [part])
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.captions", "--plan", tmp_path / "plan/00000.captions",
         "--settings", tmp_path / "settings.json", "--output", tmp_path / "out.parquet"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "part.csv is gone" in result.stderr
    assert "--forcerun plan" in result.stderr
    assert not (tmp_path / "out.parquet").exists()


def test_the_same_sources_give_the_same_bytes(clean, tmp_path):
    files = {"part.csv": "video_id,start,end,text\nb,5,6,x\na,1,2,y\na,0,2,z\n"}
    clean(files)
    first = sha256_of_file(tmp_path / "captions" / "00000.parquet")
    clean(files)
    assert sha256_of_file(tmp_path / "captions" / "00000.parquet") == first


def summarize(tmp_path):
    output = tmp_path / "summary.json"
    main(["--summarize", str(tmp_path / "plan"), "--captions", str(tmp_path / "captions"),
          "--output", str(output)])  # fmt: skip
    return read_caption_summary(output)


def test_the_summary_totals_the_shards_of_the_plan_and_tells_change(clean, tmp_path):
    clean({"a.csv": "start,end,text\n0,1800,x\n900,3600,y\n9,9,[Music]\n"}, shard="00000")
    clean({"b.csv": "start,end,text\n0,1800,x\n"}, shard="00001")
    clean({"c.csv": "start,end,text\n0,1800,x\n"}, shard="00002")
    (tmp_path / "plan" / "00002.tsv").unlink()  # a table of an older plan lies about
    summary = summarize(tmp_path)
    assert (summary.videos, summary.captions, summary.hours) == (2, 3, 1.5)
    assert summary.counts == {"read": 4, "kept": 3, "dropped_sound_tag": 1}
    assert list(summary.shards) == ["00000", "00001"]
    clean({"b.csv": "start,end,text\n0,1800,other words\n"}, shard="00001")
    again = summarize(tmp_path)
    assert again.shards["00000"] == summary.shards["00000"]
    assert again.shards["00001"] != summary.shards["00001"]


def test_a_summary_needs_a_plan_and_all_its_tables(clean, tmp_path):
    (tmp_path / "plan").mkdir()
    with pytest.raises(FileNotFoundError, match="lists no shards"):
        summarize(tmp_path)
    write_planned_videos(tmp_path / "plan" / "00007.tsv", [])
    with pytest.raises(FileNotFoundError, match="00007"):
        summarize(tmp_path)


def test_covered_time_counts_overlaps_once():
    spans = [("a", 0, 10), ("a", 2, 4), ("a", 8, 12), ("a", 20, 21), ("b", 0, 1)]
    assert covered_seconds(iter(spans)) == 14


def test_captions_without_blanks_between_words_are_named(clean, caplog):
    _, counts = clean({"c.csv": "start,end,text\n1,2,把面粉搅拌均匀\n2,3,stir\n3,4,加入盐\n"})
    assert counts["without_blanks"] == 2
    assert "2 of 3 captions have no blanks between their words" in caplog.text


def test_a_source_of_which_nothing_is_kept_ends_in_one_line(clean, tmp_path):
    clean({"c.csv": "start,end,text\nsoon,later,stir\n1,2,[Music]\n"})
    said = "no caption at all was kept.*1 dropped_sound_tag, 1 dropped_time"
    with pytest.raises(ValueError, match=said):
        main(["--summarize", str(tmp_path / "plan"), "--captions", str(tmp_path / "captions"),
              "--output", str(tmp_path / "summary.json")])  # fmt: skip
    assert not (tmp_path / "summary.json").exists()
