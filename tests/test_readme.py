"""The pages for people: every link leads somewhere, and the picture stays small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", ["README.md", "config/README.md", "CONTRIBUTING.md"])
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), anchor


def test_the_picture_of_the_report_is_a_small_png():
    content = (ROOT / ".github/report.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 300_000
