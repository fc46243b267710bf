"""How a run was made and what it leaves open: times summed, and each gap told by its cause."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.formats.files import write_text
from pipeline.report_facts import Facts, gather
from pipeline.report_origin import Spread, gaps, revision, rule_times
from tests.tiny_results import make_results

HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"
ALONE = Spread(nodes=1, ranks=1, gpus=0)
CLUSTER = Spread(nodes=2, ranks=8, gpus=8)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Facts of a run that trained and tested."""
    make_results(tmp_path)
    test = {"protocol": {"name": "youcook2"}, "missing": {"videos": {}}}
    return replace(gather(tmp_path, 5), steps=[{"step": 1, "loss": 1.0}], tests=[test])


def test_times_are_summed_and_memory_is_the_largest(tmp_path):
    write_text(tmp_path / "encode/00000.tsv", HEADER + "10.5\t0:00:10\t300.0" + "\t-" * 7 + "\n")
    write_text(tmp_path / "encode/00001.tsv", HEADER + "2.0\t0:00:02\tNA" + "\t-" * 7 + "\n")
    write_text(tmp_path / "train/train.tsv", HEADER + "0.1\t0:00:00\t-" + "\t-" * 7 + "\n")
    encode, train = rule_times(tmp_path)
    assert (encode.name, encode.jobs, encode.seconds) == ("encode", 2, 12.5)
    assert (encode.longest, encode.megabytes) == (10.5, 300.0)
    assert (train.name, train.megabytes, train.command) == ("train", 0.0, "trainer.launch")
    assert rule_times(tmp_path / "nothing") == []


def test_the_revision_is_that_of_the_code(tmp_path):
    assert revision(tmp_path) == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    write_text(tmp_path / "a", "1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert revision(tmp_path) == head.stdout[:12]
    write_text(tmp_path / "a", "2")
    assert revision(tmp_path) == head.stdout[:12] + "-dirty"


def test_a_run_on_one_cpu_says_so(facts):
    text = " ".join(gaps(facts, ALONE))
    for words in ("Encoding used no GPU", "Training used no GPU", "one machine", "one process"):
        assert words in text
    assert "msrvtt was not tested" in text
    assert "youcook2" not in text


def test_a_run_on_a_cluster_leaves_those_lines_out(facts):
    features = replace(facts.features, provenance={"device": "cuda:0"})
    text = " ".join(gaps(replace(facts, features=features), CLUSTER))
    for words in ("no GPU", "one machine", "in one process"):
        assert words not in text
    assert "not compared with one process's" in text


def test_random_weights_missing_videos_and_missing_stages_are_told(facts):
    missing = {"rows": 2, "videos": {"gone": "not_in_table", "cut": "truncated"}}
    test = {"protocol": {"name": "heldout"}, "missing": missing}
    settings = {"encode": {"weights": "random"}}
    text = " ".join(gaps(replace(facts, tests=[test], settings=settings), ALONE))
    assert "heldout: 2 videos are missing" in text
    assert "gone (not in table), cut (truncated)" in text
    assert "weights are random" in text
    text = " ".join(gaps(replace(facts, tests=[], steps=[]), ALONE))
    assert "No retrieval was tested" in text
    assert "Nothing was trained" in text
