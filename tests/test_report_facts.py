"""What the report says is what the files hold, as far as there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.report_facts import gather
from tests.pages import Page, make_page, make_trained
from tests.tiny_results import TinyResults, make_results


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results after all stages but the report."""
    return make_trained(tmp_path)


def test_the_tables_hold_the_numbers_of_the_files(tiny):
    rows = Page(make_page(tiny)).rows
    assert ["encoded", "3"] in rows
    assert ["rejected: truncated", "1"] in rows
    assert ["in the table", "4"] in rows
    assert ["broken", "truncated by encode", "5.0 of 6.0 s"] in rows
    assert ["dropped empty", "2"] in rows
    assert ["feature vectors", "18 × 8"] in rows
    assert ["videos, train / validation", "1 / 2"] in rows
    assert ["clips", "9"] in rows
    assert rows.count(["", "trained", "95 %", "baseline", "chance"]) == 2
    assert ["R@1", "25.0 %", "20.0–30.0", "12.5 %", "10.0 %"] in rows
    assert ["R@1", "50.0 %", "45.0–55.0", "12.5 %", "10.0 %"] in rows
    assert ["median rank", "2.5", "2.5–2.5", "0.1", "5.5"] in rows


def test_what_is_gathered_is_what_was_written(tiny):
    facts = gather(tiny.root, 5)
    assert facts.captions.captions == 12
    assert facts.bags is not None
    assert [entry["step"] for entry in facts.steps] == list(range(1, 41))
    assert [entry["R@10"] for entry in facts.validations] == [0.25, 0.5]
    assert [test["num_pairs"] for test in facts.tests] == [10]
    (tiny.root / "bags/00001.npz").unlink()
    assert gather(tiny.root, 5).bags is None


def test_features_alone_make_a_page_too(tmp_path):
    made = make_results(tmp_path)
    (tmp_path / "train/metrics.jsonl").unlink()
    for path in (tmp_path / "bags").iterdir():
        path.unlink()
    page = make_page(made)
    assert "Nothing was trained yet." in page
    assert ["encoded", "3"] in Page(page).rows


def test_results_without_a_plan_say_what_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="lists no shards"):
        gather(tmp_path, 5)
