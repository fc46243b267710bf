"""The page: its numbers, its self-sufficiency, its manners towards hostile data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline import report
from pipeline import report_charts as charts
from pipeline.formats.files import write_csv, write_json, write_text
from tests.tiny_results import TinyResults, make_results

EVIL = "<script>alert('x')</script> & \"quotes\""


class Page(HTMLParser):
    """What a browser would see: tags with their attributes, and rows of tables as text."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "use", "path"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.cell: list[str] | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = []
        if tag == "br" and self.cell is not None:
            self.cell.append(" ")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.rows[-1].append(" ".join("".join(self.cell).split()))
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)


def retrieval(text: str = "cut the onion") -> dict:
    """A result of the evaluation with four pairs."""
    recalls = {"R@1": 0.25, "R@5": 0.75, "R@10": 1.0, "median_rank": 2.5, "mean_rank": 3.25}
    chance = {"R@1": 0.1, "R@5": 0.5, "R@10": 1.0, "median_rank": 5.5, "mean_rank": 5.5}
    clip = {"video_id": "a.1", "start": 0.0, "end": 2.0, "text": text}
    queries = [
        {**clip, "rank_text_to_video": rank, "rank_video_to_text": 1.0,
         "hits": [{**clip, "score": 0.5}]}
        for rank in (4.0, 1.0, 2.5, 7.0)
    ]  # fmt: skip
    found = {"text_to_video": recalls, "video_to_text": {**recalls, "R@1": 0.5}}
    edges = {name: {k: [v - 0.05, v + 0.05] for k, v in numbers.items()}
             for name, numbers in found.items()}  # fmt: skip
    lower = {name: dict.fromkeys(numbers, 0.125) for name, numbers in found.items()}
    return {
        "protocol": {"name": "heldout", "clips": "list.csv", "sha256": "1" * 64,
                     "windows": "2 windows", "published_pairs": None},
        "num_pairs": 10,
        "num_rows": 12,
        "missing": {"rows": 2, "videos": {"gone": "not_in_table"}},
        **found,
        "interval": edges,
        "baseline": {"name": "a random projection", **lower},
        "chance": chance,
        "ceiling": {"text_to_video": chance, "video_to_text": chance},
        "texts_without_known_word": 0,
        "queries": queries,
        "model": {"sha256": "2" * 64, "step": 40},
        "vocabulary_sha256": "3" * 64,
    }  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results after all stages but the report."""
    made = make_results(tmp_path)
    entries = [
        {"step": step, "loss": 5 / step, "lr": 1e-3 * step, "gradient_norm": 2 / step,
         "clips_per_second": 100.0, "step_seconds": 0.2, "seconds_data": 0.05,
         "seconds_loss": 0.1}
        for step in range(1, 41)
    ]  # fmt: skip
    entries += [{"step": step, "split": "val", "R@10": step / 80, "clips": 50} for step in (20, 40)]
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    write_text(tmp_path / "train/metrics.jsonl", lines)
    write_json(tmp_path / "evaluate/heldout.json", retrieval())
    keys = {"clips": None, "num_windows": None, "max_missing": 0.1}
    write_json(tmp_path / "settings/evaluate.json", {"protocols": {"heldout": keys}})
    return made


def make_page(tiny: TinyResults, title: str = "A test") -> str:
    """Run the stage as the workflow does."""
    settings, output = tiny.root / "settings/report.json", tiny.root / "report/index.html"
    write_json(settings, {"title": title, "rejected_rows": 20})
    report.main([f"--results={tiny.root}", f"--settings={settings}", f"--output={output}"])
    return output.read_text(encoding="utf-8")


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


def test_text_from_data_is_escaped_everywhere(tiny):
    columns = ["video_id", "path", "stage", "reason", "message"]
    write_csv(tiny.root / "rejected.csv", columns, [(EVIL, EVIL, "encode", EVIL, EVIL)])
    write_json(tiny.root / "evaluate/heldout.json", retrieval(EVIL))
    write_json(tiny.root / "settings/bags.json", {"anchor": EVIL})
    page = make_page(tiny, title=EVIL)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 10
    assert Page(page).open == []


def test_the_same_results_give_the_same_bytes(tiny):
    assert make_page(tiny) == make_page(tiny)


def test_features_alone_make_a_page_too(tmp_path):
    made = make_results(tmp_path)
    (tmp_path / "train/metrics.jsonl").unlink()
    for path in (tmp_path / "bags").iterdir():
        path.unlink()
    page = make_page(made)
    assert "Nothing was trained yet." in page
    assert ["encoded", "3"] in Page(page).rows


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


def test_results_without_a_plan_say_what_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="lists no shards"):
        report.gather(tmp_path, 5)
