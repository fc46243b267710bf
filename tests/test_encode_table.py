"""Features without a workflow: a table of videos in, shards out."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import webdataset

from pipeline.encode import main
from pipeline.encode_flags import parse
from pipeline.encode_table import settings_of
from pipeline.formats.recipe import PRESETS
from pipeline.formats.shard import read_index
from tests.videos import steady, write_video


@pytest.fixture
def command():
    """The command, run in this process; its threads are set back."""
    threads = torch.get_num_threads()
    yield main
    torch.set_num_threads(threads)


@pytest.fixture
def arguments(tmp_path):
    """A table of two good videos, one that is a page and one that is gone."""
    folder = tmp_path / "videos"
    (folder / "deep").mkdir(parents=True)
    write_video(folder / "a.mp4", steady(125))
    write_video(folder / "deep" / "b.mp4", steady(50))
    (folder / "page.mp4").write_text("<html>")
    table = tmp_path / "videos.csv"
    table.write_text("video_id,path\na,a.mp4\nx.y,deep/b.mp4\npage,page.mp4\ngone,gone.mp4\n")
    flags = ["--videos", str(table), "--video-root", str(folder), "--output", str(tmp_path / "out")]
    flags += ["--encoder", "s3d", "--sample-rate", "0.5", "--batch", "8", "--workers", "1"]
    return [*flags, "--frame-size", "32", "--threads", "1", "--device", "cpu"]


def features_in(tar) -> dict[str, np.ndarray]:
    samples = webdataset.WebDataset(str(tar), shardshuffle=False)
    return {s["__key__"]: np.load(io.BytesIO(s["features.npy"])) for s in samples}


def test_a_table_becomes_a_shard_of_vectors_of_512_numbers(arguments, tmp_path, command, caplog):
    caplog.set_level("INFO")
    command(arguments)
    found = features_in(tmp_path / "out/00000.tar")
    assert {key: value.shape for key, value in found.items()} == {"a": (3, 512), "x%2Ey": (1, 512)}
    index = read_index(tmp_path / "out/00000.parquet")
    statuses = [(row.video_id, row.status, row.reason) for row in index.rows]
    assert statuses[:2] == [("a", "encoded", ""), ("x.y", "encoded", "")]
    assert statuses[2:] == [("page", "rejected", "unreadable"), ("gone", "rejected", "missing")]
    assert index.recipe.output == "embedding"
    assert index.recipe.sampling == PRESETS["half-hertz"]
    assert "4 videos: 2 accepted, 2 rejected" in caplog.text
    assert "--weights is random" in caplog.text
    command(arguments)
    assert "2 re-used, 0 encoded, 0 failed" in caplog.text


def test_a_long_table_becomes_several_shards(arguments, tmp_path, command):
    command([*arguments, "--videos-per-shard", "2", "--sample-rate", "1"])
    assert list(features_in(tmp_path / "out/00000.tar")) == ["a", "x%2Ey"]
    assert len(read_index(tmp_path / "out/00001.parquet").rows) == 2


def test_the_flags_stand_for_the_presets_and_for_each_encoder_s_own_sizes(arguments):
    settings = settings_of(parse([*arguments, "--sample-rate", "1"]))
    assert settings.grid == PRESETS["howto100m-1s"]
    bare = ["--videos", "v.csv", "--output", "out", "--encoder"]
    c3d = settings_of(parse([*bare, "c3d"]))
    assert (c3d.output, c3d.frame_size, c3d.grid.frames) == ("fc6", 112, 16)
    s3d = settings_of(parse([*bare, "s3d", "--features", "mixed_5c"]))
    assert (s3d.output, s3d.frame_size) == ("mixed_5c", 224)


def test_no_processes_keep_no_time_budget_which_is_said_at_the_start(arguments, caplog):
    parse([*arguments, "--workers", "1"])
    assert "time budget" not in caplog.text
    parse([*arguments, "--workers", "0"])
    assert caplog.text.count("--workers 0 decodes in this process, where nothing can end") == 1


def without_a_table(arguments):
    """The flags after `--videos TABLE`."""
    assert arguments[0] == "--videos"
    return arguments[2:]


def test_ids_of_captions_are_encoded_where_they_have_a_video(arguments, tmp_path, command, caplog):
    captions = tmp_path / "captions.csv"
    rows = "".join(f"{video_id},0,1,stir it\n" for video_id in ("b", "z", "a", "b", "y"))
    captions.write_text(f"video_id,start,end,text\n{rows}")
    command(["--csv", str(captions), *without_a_table(arguments)])
    found = features_in(tmp_path / "out/00000.tar")
    assert {key: value.shape for key, value in found.items()} == {"b": (1, 512), "a": (3, 512)}
    reasons = [
        (row.video_id, row.reason) for row in read_index(tmp_path / "out/00000.parquet").rows
    ]
    assert reasons == [("b", ""), ("z", "missing"), ("a", ""), ("y", "missing")]
    assert f"2 of 4 ids have no video in {tmp_path / 'videos'}, as 'z', 'y'" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("z,0,1,x\n", "1 of 1 ids have no video in .*, as 'z'; a file is"),
        ("", "0 of 0 ids have no"),
    ],
)
def test_captions_that_no_video_is_there_for_are_refused(
    arguments, tmp_path, command, rows, message
):
    (tmp_path / "captions.csv").write_text(f"video_id,start,end,text\n{rows}")
    with pytest.raises(ValueError, match=message):
        command(["--csv", str(tmp_path / "captions.csv"), *without_a_table(arguments)])
    assert not (tmp_path / "out").exists()


def test_a_table_that_is_not_there_is_named(tmp_path, command):
    with pytest.raises(FileNotFoundError, match=r"the videos table none\.csv does not exist"):
        command(["--videos", "none.csv", "--output", str(tmp_path / "out")])
