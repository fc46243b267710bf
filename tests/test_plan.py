"""The plan: what each shard holds, what counts as change, and what is refused in one line."""

import json
import os
import subprocess
import sys

import pytest

from pipeline.formats.caption_sources import iterate_captions
from pipeline.formats.plan import (
    Unmatched,
    read_planned_captions,
    read_planned_videos,
    read_unmatched,
)
from pipeline.plan import main


class Project:
    """A folder with a videos table, videos that are a few bytes each, and captions."""

    def __init__(self, root):
        self.root = root
        self.captions = "captions"
        self.per_shard = 2
        (root / "captions").mkdir()
        (root / "videos").mkdir()

    def table(self, *rows):
        lines = [
            f"{row},videos/{row}.mp4" if isinstance(row, str) else ",".join(row) for row in rows
        ]
        (self.root / "videos.csv").write_text("\n".join(["video_id,path", *lines]) + "\n")

    def files(self, *names, text="x"):
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def videos(self, *ids):
        self.files(*(f"videos/{video_id}.mp4" for video_id in ids))

    def arguments(self):
        settings = {
            "videos": "videos.csv", "captions": self.captions, "videos_per_shard": self.per_shard
        }  # fmt: skip
        (self.root / "plan.json").write_text(json.dumps(settings))
        return ["--settings", "plan.json", "--output", "results/plan", "--parts",
                "results/captions/parts", "--order", "results/.plan/order.txt"]  # fmt: skip

    def plan(self, *flags):
        main([*self.arguments(), *flags])
        return self.bytes()

    def bytes(self):
        plan = self.root / "results/plan"
        lists = (path for path in sorted(plan.iterdir()) if path.suffix != ".json")
        return {path.name: path.read_bytes() for path in lists}

    def parts(self):
        folder = self.root / "results/captions/parts"
        return sorted(path.name for path in folder.glob("*.csv")) if folder.exists() else []

    def captions_of(self, shard):
        return read_planned_captions(self.root / f"results/plan/{shard}.captions")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def five(project):
    """Five videos of which `d` has no file and `e` no path, with a caption file each."""
    project.table("a", "b", "c", "d", ("e", ""))
    project.videos("a", "b", "c")
    project.files(*(f"captions/{i}.csv" for i in "abcde"), text="start,end,text\n1,2,x\n")
    return project


def changed(before, after):
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def test_a_shard_is_a_slice_of_the_table(five):
    lists = five.plan()
    assert list(lists) == [f"{i:05d}.{kind}" for i in range(3) for kind in ("captions", "tsv")]
    first = read_planned_videos(five.root / "results/plan/00000.tsv")
    stat = os.stat("videos/a.mp4")
    assert [v.video_id for v in first] == ["a", "b"]
    assert (first[0].path, first[0].size_bytes, first[0].mtime_ns) == (
        "videos/a.mp4", 1, stat.st_mtime_ns
    )  # fmt: skip
    second = read_planned_videos(five.root / "results/plan/00001.tsv")
    assert [(v.video_id, v.size_bytes, v.mtime_ns > 0) for v in second] == [
        ("c", 1, True), ("d", -1, False)
    ]  # fmt: skip
    third = read_planned_videos(five.root / "results/plan/00002.tsv")
    assert [(v.video_id, v.path, v.size_bytes) for v in third] == [("e", "", -1)]


def test_caption_files_go_with_their_videos_but_for_removed_ones(five):
    five.plan()
    assert [s.video_id for s in five.captions_of("00000")] == ["a", "b"]
    assert five.captions_of("00000")[0].path == "captions/a.csv"
    assert five.captions_of("00000")[0].version == str(os.stat("captions/a.csv").st_mtime_ns)
    assert [s.video_id for s in five.captions_of("00001")] == ["c", "d"]
    assert five.captions_of("00002") == []


def test_planning_twice_gives_the_same_bytes_even_when_the_folder_was_deleted(five):
    before = five.plan()
    assert five.plan() == before
    for path in (five.root / "results/plan").iterdir():
        path.unlink()
    (five.root / "results/plan").rmdir()
    assert five.plan() == before


@pytest.mark.parametrize(
    ("change", "lists"),
    [
        (lambda p: p.files("videos/b.mp4", text="longer"), ["00000.tsv"]),
        (lambda p: os.utime("videos/b.mp4", ns=(1, 1)), ["00000.tsv"]),
        (lambda p: p.files("captions/c.csv", text="start,end,text\n"), ["00001.captions"]),
        (lambda p: p.videos("d"), ["00001.tsv"]),
        (lambda p: p.table("a", "b", "c", "d", ("e", ""), "f"), ["00002.tsv"]),
        (
            lambda p: p.table("a", "b", "c", "d", ("e", ""), "f", "g"),
            ["00002.tsv", "00003.captions", "00003.tsv"],
        ),
        (lambda p: p.table(("a", ""), "b", "c", "d", ("e", "")), ["00000.captions", "00000.tsv"]),
        (lambda p: (p.root / "captions/b.csv").unlink(), ["00000.captions"]),
    ],
)
def test_a_change_touches_its_own_lists_only(five, change, lists):
    before = five.plan()
    change(five)
    assert changed(before, five.plan()) == lists


def test_lists_of_an_older_plan_are_removed_and_named(five, caplog):
    five.per_shard = 1
    assert len(five.plan()) == 10
    (five.root / "results/plan/notes.txt").write_text("mine")
    five.per_shard = 3
    assert list(five.plan("--allow-reorder")) == [
        "00000.captions", "00000.tsv", "00001.captions", "00001.tsv", "notes.txt"
    ]  # fmt: skip
    assert "read by no stage: shards 00002, 00003, 00004; their files may be" in caplog.text


def test_shards_of_another_size_would_encode_everything_again_and_are_refused(five):
    before = five.plan()
    five.per_shard = 1
    with pytest.raises(ValueError, match=r"videos_per_shard is 1 and was 2: .*--allow-reorder"):
        five.plan()
    assert five.bytes() == before


def test_odd_ids_are_fine(project):
    ids = ["-tCQ4tCQdWE", "a b", "dotted.name.v2", "é%41"]
    project.table(*ids)
    project.videos(*ids)
    project.files(*(f"captions/{i}.en.srt" for i in ids))
    project.plan()
    found = [s.video_id for shard in ("00000", "00001") for s in project.captions_of(shard)]
    assert found == ids


def test_several_files_of_a_video_are_settled_and_said(five, caplog):
    """As whisper leaves them: .tsv in milliseconds beside those that carry their unit."""
    five.files("captions/a.srt", "captions/a.vtt", "captions/a.tsv", "captions/a.de.vtt")
    five.plan()
    assert five.captions_of("00000")[0].path == "captions/a.vtt"
    said = "1 videos have several caption files; the preferred one is read, as captions/a.vtt"
    assert said in caplog.text
    assert "the times of others are in captions.unit" in caplog.text


def strays(*captions, videos=(), unit="caption files"):
    return Unmatched(
        unit=unit, captions=len(captions), caption_names=list(captions[:3]),
        videos=len(videos), video_ids=list(videos[:3]),
    )  # fmt: skip


def test_files_of_no_video_and_videos_without_a_file_are_counted_and_named(five, caplog):
    """`e` was removed: neither is its file of no video, nor would it be missed."""
    five.plan()
    assert read_unmatched("results/plan") == strays()
    assert "WARNING" not in caplog.text
    for name in "ab":
        (five.root / f"captions/{name}.csv").unlink()
    five.files(*(f"captions/{name}.vtt" for name in ("w", "x", "y.en", "z")))
    five.plan()
    expected = strays("w.vtt", "x.vtt", "y.en.vtt", "z.vtt", videos=("a", "b"))
    assert read_unmatched("results/plan") == expected
    said = "4 caption files belong to no video, as 'w.vtt', 'x.vtt', 'y.en.vtt'"
    assert f"captions: {said}\n" in caplog.text
    assert "2 videos have no captions, as 'a', 'b'\n" in caplog.text
    assert [record.levelname for record in caplog.records if "as 'a'" in record.message] == [
        "WARNING"
    ]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_captions_of_other_ids_in_one_file_are_counted_and_named(project, form, caplog):
    project.table("a", "b", "c", ("gone", ""))
    project.videos(*"abc")
    project.captions = f"captions/all.{form}"
    value = {i: ["x"] for i in ("a", "gone", "w", "x", "y", "z")}
    if form == "csv":
        project.files(project.captions, text=table_text(**value))
    else:
        items = {i: [{"start": 1, "end": 2, "text": "x"}] for i in value}
        project.files(project.captions, text=json.dumps(items))
    expected = strays("w", "x", "y", "z", videos=("b", "c"), unit="captions")
    project.plan()
    assert read_unmatched("results/plan") == expected
    assert "4 captions belong to no video, as 'w', 'x', 'y'" in caplog.text
    caplog.clear()
    project.plan()  # which reads the source no more
    assert read_unmatched("results/plan") == expected
    assert "2 videos have no captions, as 'b', 'c'" in caplog.text


def test_a_source_that_speaks_of_removed_videos_alone_is_refused(project):
    project.table("a", ("gone", ""))
    project.videos("a")
    project.files("captions/gone.vtt")
    with pytest.raises(ValueError, match="the videos are 'a'; the captions speak of 'gone'"):
        project.plan()
    project.captions = "captions/one.csv"
    project.files(project.captions, text=table_text(gone=["x"]))
    with pytest.raises(ValueError, match=r"captions/one\.csv holds no caption, or of removed"):
        project.plan()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["b", "a", "c"], "row 1 was 'a' and is now 'b'"),
        (["a", "c"], "row 2 was 'b' and is now 'c'"),
        (["a", "b"], "row 3 was 'c' and is gone"),
    ],
)
def test_a_reordered_table_is_refused_and_the_plan_stays(project, rows, message):
    project.table("a", "b", "c")
    project.videos("a", "b", "c")
    project.files("captions/a.csv")
    before = project.plan()
    project.table(*rows)
    with pytest.raises(ValueError, match=message):
        project.plan()
    assert project.bytes() == before
    after = project.plan("--allow-reorder")
    assert after != before
    assert project.plan() == after  # the new order is the order now


def test_a_failed_plan_does_not_take_the_new_order_for_granted(project):
    project.table("a", "b")
    project.videos("a")
    project.files("captions/x.csv")
    with pytest.raises(ValueError, match="no caption"):
        project.plan()
    project.table("b", "a")
    project.files("captions/a.csv")
    project.plan()


def test_lists_over_the_limit_are_refused(project):
    ids = [f"{i:05d}-" + "x" * 200 for i in range(2500)]
    project.table(*ids)
    project.videos(ids[0])
    project.files("captions/c.csv", text=f"video_id,start,end,text\n{ids[0]},1,2,x\n")
    project.captions = "captions/c.csv"
    project.per_shard = 2500
    with pytest.raises(ValueError, match=r"00000 has 1,\d+,\d+ bytes.*lower plan.videos_per_shard"):
        project.plan()
    assert not (project.root / "results/plan").exists()
    project.per_shard = 1250
    assert len(project.plan()) == 4


@pytest.mark.parametrize("source", ["captions", "captions/all.csv", "captions/all.json"])
def test_captions_of_no_video_show_both_sides(project, source):
    project.table("a", "b", "c", "d")
    project.videos("a")
    project.files("captions/u.vtt", "captions/v.vtt", "captions/w.en.vtt")
    text = "video_id,start,end,text\n" + "".join(f"{i},1,2,x\n" for i in "uuvwx")
    project.files("captions/all.csv", text=text)
    value = {i: [{"start": 1, "end": 2, "text": "x"}] for i in "uvwx"}
    project.files("captions/all.json", text=json.dumps(value))
    if source != "captions":
        project.captions = source
    else:
        (project.root / "captions/all.csv").unlink()
        (project.root / "captions/all.json").unlink()
    with pytest.raises(
        ValueError, match=r"'a', 'b', 'c'; the captions speak of 'u', 'v', 'w'; make"
    ):
        project.plan()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "a header and no row"),
        ([("a", ""), ("b", "")], "of 2 rows, 2 have an empty path and 0 name a file"),
        (["a", ("b", "")], "1 have an empty path and 1 name a file.*as 'videos/a.mp4'"),
    ],
)
def test_no_usable_video_is_refused(project, rows, message):
    project.table(*rows)
    project.files("captions/a.csv")
    with pytest.raises(ValueError, match=f"no usable video at all: .*{message}"):
        project.plan()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda p: (p.root / "videos.csv").unlink(), ["videos.csv does not exist", "catalog"]),
        (lambda p: p.table("a", "a"), ["'a' stands on line 2 and again on line 3"]),
        (lambda p: setattr(p, "captions", "nowhere"), ["plan.captions: nowhere does not exist"]),
        (lambda p: setattr(p, "captions", "videos.csv"), ["videos.csv", "no column start"]),
        (
            lambda p: setattr(p, "captions", "videos/a.mp4"),
            ["a.mp4", "folder with a file for each"],
        ),
        (lambda p: setattr(p, "per_shard", 0), ["plan.json: videos_per_shard is 0"]),
    ],
)
def test_errors_are_one_line_at_the_command(five, prepare, words):
    prepare(five)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.plan", *five.arguments()], cwd=five.root, check=False,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root},
    )  # fmt: skip
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert not (five.root / "results/plan").exists()


def table_text(**captions):
    rows = [f"{i},{at},{at + 1},{text}\n" for i, texts in captions.items()
            for at, text in enumerate(texts)]  # fmt: skip
    return "video_id,start,end,text\n" + "".join(rows)


@pytest.fixture
def tabled(project):
    """Five videos, three shards, one table; `e` has no captions."""
    project.table(*"abcde")
    project.videos(*"abcde")
    project.captions = "captions/all.csv"
    project.files(project.captions, text=table_text(a=["x"], b=["y"], c=["z"], d=["w"], q=["?"]))
    return project


def test_a_table_goes_into_parts_named_by_their_content(tabled):
    tabled.plan()
    (source,) = tabled.captions_of("00000")
    assert source.video_id == ""
    assert source.path == f"results/captions/parts/{source.version}.csv"
    part, table = tabled.root / source.path, tabled.root / "given.csv"
    table.write_text(table_text(a=["x"], b=["y"]))
    assert list(iterate_captions(part)) == list(iterate_captions(table))
    assert source.size_bytes == part.stat().st_size
    assert tabled.captions_of("00002") == []
    assert len(tabled.parts()) == 2


def test_one_changed_caption_changes_one_list_and_its_old_part_goes(tabled):
    before, parts = tabled.plan(), tabled.parts()
    tabled.files(tabled.captions, text=table_text(a=["x"], b=["y"], c=["new"], d=["w"]))
    assert changed(before, tabled.plan()) == ["00001.captions"]
    assert len(tabled.parts()) == 2
    assert len(set(parts) & set(tabled.parts())) == 1


def test_appended_videos_leave_the_other_parts(tabled):
    before = tabled.plan()
    tabled.table(*"abcdeq")
    assert changed(before, tabled.plan()) == ["00002.captions", "00002.tsv"]


def test_from_a_table_to_a_folder_the_parts_go(tabled):
    tabled.plan()
    tabled.captions = "captions"
    tabled.files("captions/a.csv")
    tabled.plan()
    assert tabled.parts() == []
    assert tabled.captions_of("00000")[0].path == "captions/a.csv"


def test_the_parser_says_what_goes_in_and_out(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "go in" in capsys.readouterr().out
