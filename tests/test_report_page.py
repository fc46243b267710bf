"""The page: whole, self-sufficient, and safe from hostile data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline import report_page
from pipeline.formats.files import write_csv, write_json
from tests.pages import EVIL, Page, make_page, make_trained, retrieval
from tests.tiny_results import TinyResults


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results after all stages but the report."""
    return make_trained(tmp_path)


@pytest.mark.parametrize(
    ("write", "number", "text"),
    [
        (report_page.count, 1234567, "1,234,567"),
        (report_page.percent, 0.0625, "6.2 %"),
        (report_page.size, 999, "999 bytes"),
        (report_page.size, 1500, "1.5 kB"),
        (report_page.size, 2e15, "2e+03 TB"),
        (report_page.duration, 59.96, "60.0 s"),
        (report_page.duration, 5000, "83 min"),
        (report_page.duration, 5400, "1.5 h"),
    ],
)
def test_numbers_are_written_for_people(write, number, text):
    assert write(number) == text


def test_settings_stand_as_in_the_config():
    assert report_page.words("bag_window_seconds") == "bag window seconds"
    found = [report_page.value(one) for one in ("mean", None, True, {"b": 1, "a": [2]})]
    assert found == ["mean", "null", "true", '{"a": [2], "b": 1}']


def test_the_page_needs_nothing_from_outside(tiny):
    page = make_page(tiny)
    for tag, attributes in Page(page).tags:
        assert tag not in ("script", "iframe", "object")
        for name in ("src", "href", "xlink:href", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith("#") or value == "data:,"
    assert not re.search(r"url\((?!#)|@import", page)


def test_every_tag_is_closed_and_no_id_stands_twice(tiny):
    parsed = Page(make_page(tiny))
    assert parsed.open == []
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = {a["xlink:href"] for _, a in parsed.tags if "xlink:href" in a}
    assert used <= {f"#{name}" for name in ids}


def test_text_from_data_is_escaped_everywhere(tiny):
    columns = ["video_id", "path", "stage", "reason", "message"]
    write_csv(tiny.root / "rejected.csv", columns, [(EVIL, EVIL, "encode", EVIL, EVIL)])
    write_json(tiny.root / "evaluate/heldout.json", retrieval(EVIL))
    write_json(tiny.root / "settings/bags.json", {"anchor": EVIL})
    page = make_page(tiny, title=EVIL)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 10
    assert Page(page).open == []
