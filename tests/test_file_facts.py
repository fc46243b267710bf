"""What is said of the files of data, beside what was put into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.formats.files import sha256_of_file
from pipeline.formats.partial import partial_path, write_partial
from pipeline.formats.shard import EncodedVideo
from pipeline.tools import file_facts, info
from tests.tiny_results import FEATURE_DIM, RECIPE, video_facts


def said(path: Path, capsys) -> dict[str, str]:
    """The lines of the tool as name and value."""
    info.main([str(path)])
    lines = capsys.readouterr().out.splitlines()
    return {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines}


def test_data_files_tell_their_counts_ids_and_recipe(tiny, capsys):
    found = said(tiny.root / "shards/00001.tar", capsys)
    assert found["what"] == "feature shard"
    assert found["videos"] == "2, 1 encoded"
    assert found["without features"] == "truncated 1"
    assert found["vectors"] == "6 × 8"
    assert found["ids"] == "c, broken"
    assert found["recipe identity"] == RECIPE.identity
    assert found["health"].startswith("whole")
    assert said(tiny.root / "shards/00001.parquet", capsys)["vectors"] == "6 × 8"
    assert said(tiny.root / "manifest/00000.parquet", capsys)["videos"] == "2, 2 accepted"
    assert said(tiny.root / "captions/00000.parquet", capsys)["captions"] == "6 of 2 videos"
    bags = said(tiny.root / "bags/00000.npz", capsys)
    assert bags["videos"] == "2: 1 train, 1 val"
    assert bags["clips"] == "6, bags of up to 3"
    assert bags["vocabulary sha256"] == sha256_of_file(tiny.root / "vocabulary.txt")
    assert said(tiny.root / "plan/00001.tsv", capsys)["videos"] == "2, 0 without a file"
    assert said(tiny.root / "vocabulary.txt", capsys)["words"] == "10"
    summary = said(tiny.root / "captions/summary.json", capsys)
    assert summary["captions"] == "12 of 4 videos"


def test_long_lists_end_in_how_many_more_there_are():
    ids = [f"v{number}" for number in range(2000)]
    shown = ids[: file_facts.NUM_IDS]
    assert file_facts.say_some(shown) == ", ".join(shown)
    more = f"{2000 - len(shown):,} more"
    assert file_facts.say_some(ids) == file_facts.say_some(shown, 2000)
    assert file_facts.say_some(ids) == f"{', '.join(shown)}, … {more}"
    assert file_facts.say_counts({"b_c": 1200, "a": 1, "none": 0}) == "a 1, b c 1,200"


def test_a_finished_video_of_an_unfinished_shard(tmp_path, capsys):
    features = np.zeros((6, FEATURE_DIM), "<f2")
    video = EncodedVideo(facts=video_facts("a b"), features=features)
    write_partial(tmp_path, video, "recipe-x")
    found = said(partial_path(tmp_path, "a b"), capsys)
    assert (found["id"], found["vectors"], found["recipe identity"]) == ("a b", "6 × 8", "recipe-x")
