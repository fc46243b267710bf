"""The catalog makes the videos table and extends it, and never moves a row."""

import json
import os
import subprocess
import sys

import pytest

from pipeline.formats.videos import read_videos
from pipeline.tools.catalog import main


@pytest.fixture
def videos(tmp_path, monkeypatch):
    """Make empty files under `videos/`; return the function that does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "videos").mkdir()

    def make(*names):
        for name in names:
            (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "videos" / name).touch()

    return make


def catalog(*flags):
    main(["--root", "videos", "--output", "videos.csv", *flags])
    return [(entry.video_id, entry.path) for entry in read_videos("videos.csv")]


def test_a_folder_becomes_a_table_sorted_by_path(videos):
    videos("b.mp4", "-tCQ4tCQdWE.webm", "sub/a.MKV", "te[s]t_ video ' _ .flv", "x,y.avi")
    assert catalog() == [
        ("-tCQ4tCQdWE", "videos/-tCQ4tCQdWE.webm"), ("b", "videos/b.mp4"),
        ("a", "videos/sub/a.MKV"), ("te[s]t_ video ' _ ", "videos/te[s]t_ video ' _ .flv"),
        ("x,y", "videos/x,y.avi"),
    ]  # fmt: skip


def test_other_hidden_and_unfinished_files_do_not_count(videos):
    videos("a.mp4", "a.txt", "a.jpg", "b.mp4.part", ".hidden.mp4", ".cache/c.mp4", "._d.mp4")
    assert catalog() == [("a", "videos/a.mp4")]


@pytest.mark.parametrize("names", [("a.mp4", "a.webm"), ("one/a.mp4", "two/a.mp4")])
def test_two_files_of_one_id_are_refused_by_path(videos, names):
    videos(*names)
    with pytest.raises(ValueError, match=f"videos/{names[0]} and videos/{names[1]} would both be"):
        catalog()
    assert not os.path.exists("videos.csv")


def test_names_that_a_table_cannot_hold_are_left_out_and_said(videos, caplog):
    videos("a.mp4", "b\tc.mp4", "d\ne.mp4", os.fsdecode(b"f\xff.mp4"))
    assert catalog() == [("a", "videos/a.mp4")]
    assert caplog.text.count("left out") == 3


def test_parts_of_a_download_beside_its_finished_file_are_left_out_and_counted(videos, caplog):
    videos("a.mkv", "a.f137.mp4", "a.f251-1.webm", "a.temp.mp4", "b.f137.mp4", "sub/a.f1.mp4")
    assert [path for _, path in catalog()] == [
        "videos/a.mkv", "videos/b.f137.mp4", "videos/sub/a.f1.mp4"
    ]  # fmt: skip
    said = (
        "left out, as parts of a download beside its finished file: 3 files, as videos/a.f137.mp4"
    )
    assert said in caplog.text


def test_a_file_in_another_unicode_form_is_no_second_video(videos, tmp_path):
    """A Mac copies a file under a name in NFD."""
    (tmp_path / "c.csv").write_text("video_id,start,end,text\ncr\u00e8me,1,2,x\n")
    videos("cre\u0300me.mp4")
    row = ("cr\u00e8me", "videos/cre\u0300me.mp4")
    assert catalog("--captions", "c.csv") == [row]
    assert catalog() == [row]


def test_what_stands_in_the_table_stays_byte_for_byte(videos, tmp_path):
    before = b'\xef\xbb\xbfnote,video_id,split,path\r\n"my, note",z,val,elsewhere/z.mp4\r\nx,a,,'
    (tmp_path / "videos.csv").write_bytes(before)
    videos("a.mp4", "b.mp4", "c.mp4")
    assert catalog() == [
        ("z", "elsewhere/z.mp4"), ("a", ""), ("b", "videos/b.mp4"), ("c", "videos/c.mp4")
    ]  # fmt: skip
    assert (
        tmp_path / "videos.csv"
    ).read_bytes() == before + b"\n,b,,videos/b.mp4\n,c,,videos/c.mp4\n"


def test_a_table_saved_with_semicolons_is_extended_with_semicolons(videos, tmp_path):
    (tmp_path / "videos.csv").write_bytes(b"video_id;path\r\nz;elsewhere/z.mp4\r\n")
    videos("a,1.mp4")
    assert catalog() == [("z", "elsewhere/z.mp4"), ("a,1", "videos/a,1.mp4")]
    assert b"a,1;videos/a,1.mp4" in (tmp_path / "videos.csv").read_bytes()


def test_a_second_run_changes_nothing_and_vanished_files_keep_their_row(videos, tmp_path):
    videos("a.mp4", "b.mp4")
    catalog()
    before = (tmp_path / "videos.csv").read_bytes()
    catalog()
    assert (tmp_path / "videos.csv").read_bytes() == before
    (tmp_path / "videos/a.mp4").unlink()
    videos("0.mp4")
    assert [video_id for video_id, _ in catalog()] == ["a", "b", "0"]


@pytest.mark.parametrize("form", ["table", "json", "folder"])
def test_ids_of_captions_find_their_files_or_where_they_would_be(videos, tmp_path, form, caplog):
    caplog.set_level("INFO")
    videos("sub/b.webm", "unnarrated.mp4")
    source = tmp_path / {"table": "c.csv", "json": "c.json", "folder": "captions"}[form]
    if form == "table":
        source.write_text("video_id,start,end,text\na,1,2,x\nb,1,2,x\na,2,3,y\n")
    elif form == "json":
        source.write_text(json.dumps({i: {"start": [1], "end": [2], "text": ["x"]} for i in "ab"}))
    else:
        source.mkdir()
        (source / "a.csv").touch()
        (source / "b.en.vtt").touch()
    assert catalog("--captions", str(source)) == [("a", "videos/a.mp4"), ("b", "videos/sub/b.webm")]
    assert "0 rows kept, 2 appended; 1 videos found, 1 ids without a file" in caplog.text


def test_an_id_cannot_lead_out_of_the_root(videos, tmp_path):
    (tmp_path / "c.csv").write_text("video_id,start,end,text\n../../etc/x,1,2,y\n..,1,2,y\n")
    for _, path in catalog("--captions", "c.csv"):
        assert os.path.abspath(path).startswith(str(tmp_path / "videos") + os.sep)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--root", "none", "--output", "v.csv"], "none is not a folder: name that of the videos"),
        (["--root", "videos", "--output", "v.csv"], "no video found"),
        (["--root", "videos", "--output", "v.parquet"], "writes CSV"),
        (["--root", "videos", "--output", "v.csv", "--captions", "no.csv"], "no.csv"),
    ],
)
def test_errors_are_one_line(videos, tmp_path, flags, message):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.tools.catalog", *flags], cwd=tmp_path, check=False,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root},
    )  # fmt: skip
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert not (tmp_path / "v.csv").exists()
