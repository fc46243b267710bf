"""The stage `report`: what it tells of training and of each protocol."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline import report
from pipeline.formats.files import write_json
from tests.pages import make_page, make_trained, retrieval
from tests.tiny_results import TinyResults


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results after all stages but the report."""
    return make_trained(tmp_path)


def test_a_ceiling_is_told_only_where_equal_texts_lower_it(tiny):
    assert "even a perfect model" in make_page(tiny)
    found = retrieval()
    found["ceiling"] = {name: {"R@1": 1.0, "R@5": 1.0, "R@10": 1.0} for name in report.DIRECTIONS}
    write_json(tiny.root / "evaluate/heldout.json", found)
    assert "even a perfect model" not in make_page(tiny)


def test_the_best_and_the_worst_found_are_shown_in_order(tiny):
    ranks = re.findall(r'class="rank">rank ([0-9.]+)<', make_page(tiny))
    assert ranks == ["1", "2.5", "7", "4"]


def test_training_speed_names_the_parts_that_took_most_of_the_time(tiny):
    said = "100 clips a second (median), 200 ms a step: 50% loss, 25% data."
    assert said in make_page(tiny)
    assert report.training_speed([{"step": 1, "loss": 2.0}]) == ""
    assert report.parts_of_steps([{"step": 1}]) == []


def test_every_protocol_of_the_settings_has_its_own_part_and_no_other_has(tiny):
    keys = {"clips": "x.csv", "num_windows": 4, "max_missing": 0.1}
    names = {"youcook2": keys, "heldout": keys, "off": None, "later": keys}
    write_json(tiny.root / "settings/evaluate.json", {"protocols": names})
    for name in ("youcook2", "off", "old"):
        found = retrieval()
        found["protocol"] |= {"name": name, "published_pairs": 3350}
        write_json(tiny.root / f"evaluate/{name}.json", found)
    page = make_page(tiny)
    assert re.findall(r"<h3>Retrieval: (\w+)</h3>", page) == ["heldout", "youcook2"]
    assert "The published list has 3,350 pairs: numbers of papers are not quite" in page


def test_bag_sizes_count_each_clip_once():
    bags = report.BagFacts(
        train_videos=1, val_videos=0, clips=4, captions=5, vocabulary_size=3,
        clips_by_bag_size=[0, 1, 3], left_out={},
    )  # fmt: skip
    assert report.mean_bag_size(bags) == 1.75


def test_the_same_results_give_the_same_bytes(tiny):
    assert make_page(tiny) == make_page(tiny)
