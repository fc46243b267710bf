"""The pages in a real browser: Chromium without a window, as Debian packages it.

A probe is put into a copy of the page, which stands in a frame of the width under test; what it
measures comes back in the dumped document. The probe is the only script there.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import report
from pipeline.formats.files import write_json, write_text
from pipeline.formats.plan import read_planned_videos, write_planned_videos
from tests.pages import found, make_search_page, retrieval
from tests.tiny_results import make_results

PHONE, DESK = 400, 1200
PROBE = """<script>
addEventListener("load", () => parent.postMessage({
  width: innerWidth,
  scrolls: document.documentElement.scrollWidth,
  wider: [...document.querySelectorAll(".wide")].filter(
    e => e.scrollWidth > e.clientWidth + 1).length,
  rows: document.querySelectorAll("tbody tr").length,
  charts: [...document.querySelectorAll("svg[role=img]")].filter(
    e => e.getBoundingClientRect().height > 100 && e.getAttribute("aria-label")).length,
  pictures: [...document.images].map(i => i.naturalWidth),
  spoken: [...document.images].every(i => i.alt),
  paper: getComputedStyle(document.body).backgroundColor,
  text: document.body.innerText,
}, "*"))
</script>"""
FRAME = """<!DOCTYPE html><title>frame</title><body style="margin:0">
<iframe src="page.html" style="width:%dpx;height:900px;border:0"></iframe><pre id="said"></pre>
<script>addEventListener("message", e =>
  document.getElementById("said").textContent = JSON.stringify(e.data))</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser's command."""
    for name in (
        os.environ.get("BAGPIPE_CHROMIUM"),
        "chromium",
        "chromium-browser",
        "google-chrome",
    ):
        if name and (command := shutil.which(name)):
            return command
    pytest.skip("no chromium found: apt-get install chromium, or set BAGPIPE_CHROMIUM")


def browse(chromium: str, page: str, folder: Path, width: int, *options: str) -> dict:
    """Load a page at a width; return what the probe saw, and what the console said."""
    folder.mkdir(exist_ok=True)
    write_text(folder / "page.html", page.replace("</body>", f"{PROBE}</body>"))
    write_text(folder / "frame.html", FRAME % width)
    # No network, no sandbox (tests may run as root), and a profile of its own.
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={width + 200},1000",
        "--enable-logging=stderr", "--virtual-time-budget=5000", *options, "--dump-dom",
        (folder / "frame.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (said,) = re.findall(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(html.unescape(said)), "console": console}


@pytest.fixture(scope="module")
def run_page(tmp_path_factory, plain_video) -> str:
    """The report of made-up results whose videos are all one real file."""
    root = tmp_path_factory.mktemp("run")
    make_results(root)
    for plan in (root / "plan").glob("*.tsv"):
        videos = read_planned_videos(plan)
        write_planned_videos(plan, [replace(video, path=str(plain_video)) for video in videos])
    lines = [
        {"step": n, "loss": 5 / n, "lr": 1e-3, "gradient_norm": 1.0, "clips_per_second": 90.0,
         "step_seconds": 0.1, "seconds_data": 0.01}
        for n in range(1, 30)
    ]  # fmt: skip
    lines.append({"step": 29, "split": "val", "R@10": 0.5, "clips": 50})
    write_text(root / "train/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    keys = {"clips": None, "num_windows": None, "max_missing": 0.1}
    write_json(root / "settings/evaluate.json", {"protocols": {"heldout": keys}})
    long = retrieval("a" * 150 + " " + "many words " * 20)
    long["protocol"]["clips"] = "/a/folder/with/a/long/name/" + "x" * 90 + ".csv"
    write_json(root / "evaluate/heldout.json", long)
    write_json(root / "settings/report.json", {"title": "T" * 80, "rejected_rows": 20})
    columns = "s\tmax_rss\n1234.5\t2048.0\n"
    write_text(root / "benchmarks/encode/00000.tsv", columns)
    report.main([f"--results={root}", f"--settings={root / 'settings/report.json'}",
                 f"--output={root / 'index.html'}"])  # fmt: skip
    return (root / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_report_fits_and_shows_everything(chromium, run_page, tmp_path, width):
    seen = browse(chromium, run_page, tmp_path / "b", width)
    assert seen["console"] == []
    assert seen["width"] == width
    assert seen["scrolls"] <= width
    assert seen["wider"] == 0
    assert seen["charts"] == 8
    assert seen["rows"] > 40
    assert len(seen["pictures"]) == 8  # two of each of the two best and two worst
    assert all(size > 0 for size in seen["pictures"])
    assert seen["spoken"]
    for heading in ("What went in", "What came out", "What this run did not cover"):
        assert heading in seen["text"]


def test_the_page_of_a_search_fits_a_phone(chromium, tmp_path, plain_video):
    content = found(plain_video, query="word " * 40 + "w" * 80)
    content["hits"][0]["video_id"] = "i" * 120
    seen = browse(chromium, make_search_page(tmp_path, content), tmp_path / "b", PHONE)
    assert seen["console"] == []
    assert seen["scrolls"] <= PHONE
    assert seen["pictures"] == [144]
    assert "0.750" in seen["text"]


def test_dark_mode_has_dark_paper(chromium, run_page, tmp_path):
    light = browse(chromium, run_page, tmp_path / "a", PHONE)["paper"]
    dark = browse(
        chromium, run_page, tmp_path / "b", PHONE, "--blink-settings=preferredColorScheme=0"
    )["paper"]
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(20, 23, 28)"


def test_a_fault_would_be_seen(chromium, run_page, tmp_path):
    broken = run_page.replace(
        "</body>", '<p style="width:700px">w</p><script>oops()</script></body>'
    )
    seen = browse(chromium, broken, tmp_path / "b", PHONE)
    assert seen["scrolls"] > PHONE
    assert any("oops is not defined" in line for line in seen["console"])


@pytest.mark.demo
@pytest.mark.timeout(1800)
def test_the_demo_s_page_fits_a_phone_and_has_its_pictures(chromium, demo_results, tmp_path):
    page = demo_results / "report/index.html"
    seen = browse(chromium, page.read_text(encoding="utf-8"), tmp_path / "b", PHONE)
    assert seen["console"] == []
    assert seen["scrolls"] <= PHONE
    assert len(seen["pictures"]) == 20
    assert all(size > 0 for size in seen["pictures"])
