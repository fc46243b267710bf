"""What is said of the files of data, beside what was put into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.files import sha256_of_file
from pipeline.formats.partial import partial_path, write_partial
from pipeline.formats.shard import EncodedVideo
from pipeline.tools import info
from tests.tiny_model import make_tested
from tests.tiny_results import FEATURE_DIM, RECIPE, TinyResults, video_facts


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model."""
    return make_tested(tmp_path)


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


def test_a_finished_video_of_an_unfinished_shard(tmp_path, capsys):
    features = np.zeros((6, FEATURE_DIM), "<f2")
    video = EncodedVideo(facts=video_facts("a b"), features=features)
    write_partial(tmp_path, video, "recipe-x")
    found = said(partial_path(tmp_path, "a b"), capsys)
    assert (found["id"], found["vectors"], found["recipe identity"]) == ("a b", "6 × 8", "recipe-x")
