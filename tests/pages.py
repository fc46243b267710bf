"""Results to report on, the page made of them, and what a browser would see of it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from pipeline import report
from pipeline.formats.files import write_json, write_text
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


def make_trained(root: Path) -> TinyResults:
    """Results after all stages but the report."""
    made = make_results(root)
    entries = [
        {"step": step, "loss": 5 / step, "lr": 1e-3 * step, "gradient_norm": 2 / step,
         "clips_per_second": 100.0, "step_seconds": 0.2, "seconds_data": 0.05,
         "seconds_loss": 0.1}
        for step in range(1, 41)
    ]  # fmt: skip
    entries += [{"step": step, "split": "val", "R@10": step / 80, "clips": 50} for step in (20, 40)]
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    write_text(root / "train/metrics.jsonl", lines)
    write_json(root / "evaluate/heldout.json", retrieval())
    keys = {"clips": None, "num_windows": None, "max_missing": 0.1}
    write_json(root / "settings/evaluate.json", {"protocols": {"heldout": keys}})
    return made


def make_page(tiny: TinyResults, title: str = "A test") -> str:
    """Run the stage as the workflow does."""
    settings, output = tiny.root / "settings/report.json", tiny.root / "report/index.html"
    write_json(settings, {"title": title, "rejected_rows": 20})
    report.main([f"--results={tiny.root}", f"--settings={settings}", f"--output={output}"])
    return output.read_text(encoding="utf-8")


def found(video: Path, **more: object) -> dict:
    """What a search wrote: a hit in a video that is there, and one in a video that is gone."""
    caption = {"start": 0.0, "end": 1.0, "text": "cut the onion"}
    hits = [
        {"rank": 1, "score": 0.75, "video_id": "a", "path": str(video), "start": 1.0, "end": 3.0,
         "captions": [caption]},
        {"rank": 2, "score": 0.5, "video_id": "b", "path": "gone.mp4", "start": 0.0, "end": 2.0,
         "captions": []},
    ]  # fmt: skip
    return {
        "format": "bagpipe-search-1", "kind": "text", "query": "onions", "unknown_words": ["yum"],
        "k": 2, "searched": 9, "model": {"sha256": "1" * 64, "step": 7}, "hits": hits, **more,
    }  # fmt: skip


def make_search_page(folder: Path, content: dict) -> str:
    """Write the page as by hand."""
    write_json(folder / "found.json", content)
    report.main([f"--search={folder / 'found.json'}", f"--output={folder / 'found.html'}"])
    return (folder / "found.html").read_text(encoding="utf-8")
