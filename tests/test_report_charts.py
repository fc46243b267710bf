"""Charts: titles, axes and inks, long curves and single points."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline import report_charts as charts
from pipeline.formats.files import write_text
from tests.pages import make_page, make_trained
from tests.tiny_results import TinyResults


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results after all stages but the report."""
    return make_trained(tmp_path)


def test_each_chart_has_title_axes_and_an_alternative_text(tiny):
    page = make_page(tiny)
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    spoken = [re.search(r'role="img" aria-label="([^"]+)"', chart)[1] for chart in charts]
    assert len(charts) == 8
    assert "Training loss: 5 at step 1, 0.125 at step 40." in spoken
    assert any("text → video R@1 25.0%" in text for text in spoken)
    for label in ("MIL-NCE loss (nats)", "clips / second", "milliseconds", "step"):
        assert f">{label}</text>" in page


def test_charts_take_their_inks_from_the_page(tiny):
    page = make_page(tiny)
    for chart in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        assert "currentColor" in chart
        assert not re.findall(r"(?:fill|stroke): #(?!ffffff)[0-9a-f]{6}", chart)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_a_loss_that_is_no_number_leaves_a_gap_and_no_crash(tiny):
    lines = [{"step": 1, "loss": None}, {"step": 2, "loss": 3.0}, {"step": 3, "loss": 2.0}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_text(tiny.root / "train/metrics.jsonl", text)
    assert "Training loss: 3 at step 2, 2 at step 3." in make_page(tiny)


def test_a_single_point_is_seen_and_stands_at_a_whole_step():
    points = {label: [(4.0, value)] for label, value in (("R@10", 60.0), ("R@5", 30.0))}
    svg = charts.curves("one", points, title="t", x="step", y="found")
    assert ">4</text>" in svg
    assert not re.search(r">[34]\.\d</text>", svg)
    assert len(re.findall(r"<use ", svg)) >= 2 + 2  # the points, and the legend's


def test_long_curves_are_thinned_and_keep_their_end(tiny):
    lines = [json.dumps({"step": n, "loss": 1 / n}) for n in range(1, 20_001)]
    write_text(tiny.root / "train/metrics.jsonl", "\n".join(lines) + "\n")
    page = make_page(tiny)
    assert "5e-05 at step 20000" in page
    assert len(page) < 200_000
