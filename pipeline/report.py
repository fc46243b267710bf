"""Stage `report`: one page that says what went in, what came out, and how it was made.

Reads   the results folder: plan, shards, captions, bags, train, evaluate, settings, rejected.csv
Writes  report/index.html, which holds its charts and needs no network
By hand `python -m pipeline.report --help`
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline import report_charts as charts
from pipeline.cli import run
from pipeline.formats.files import write_text
from pipeline.formats.settings import read_settings
from pipeline.report_facts import BagFacts, Facts, gather
from pipeline.settings import ReportSettings

TEMPLATE = "report.html"
NUM_EXAMPLES = 5
DIRECTIONS = {"text_to_video": "text → video", "video_to_text": "video → text"}

log = logging.getLogger(__name__)


def render(facts: Facts, settings: ReportSettings) -> str:
    """The page as HTML; everything from data is escaped."""
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": _count, "percent": _percent, "bytes": _bytes}
    environment.filters |= {"words": _words, "value": _value}
    return environment.get_template(TEMPLATE).render(
        facts=facts,
        title=settings.title,
        directions=DIRECTIONS,
        charts={name: Markup(svg) for name, svg in draw_charts(facts).items()},
        examples=examples(facts.retrieval),
        mean_bag_size=mean_bag_size(facts.bags) if facts.bags else 0.0,
    )


def draw_charts(facts: Facts) -> dict[str, str]:
    """Name to inline SVG; a chart without numbers is an empty string."""
    made = {
        name: charts.curve(
            name, _series(facts.steps, key), title=title, x="step", y=unit, log=key != "lr"
        )
        for name, key, title, unit in (
            ("loss", "loss", "Training loss", "MIL-NCE loss (nats)"),
            ("lr", "lr", "Learning rate", "learning rate"),
            ("norm", "gradient_norm", "Gradient norm", "norm before clipping"),
            ("speed", "clips_per_second", "Throughput", "clips / second"),
        )
    }
    made["validation"] = charts.curve(
        "validation",
        [(step, 100 * value) for step, value in _series(facts.validations, "R@10")],
        title="R@10 on the validation split",
        x="step",
        y="found (% of queries)",
    )
    made["bags"] = charts.histogram(
        "bags",
        facts.bags.clips_by_bag_size if facts.bags else [],
        title="Bag sizes",
        x="captions in the bag",
        y="clips",
    )
    made["recall"] = ""
    if facts.retrieval:
        groups = {label: facts.retrieval[name] for name, label in DIRECTIONS.items()}
        made["recall"] = charts.recalls("recall", groups, facts.retrieval["chance"])
    return made


def _series(entries: list[dict], key: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[key]) for entry in entries if entry.get(key) is not None]


def examples(retrieval: dict | None) -> dict[str, list[dict]]:
    """The queries that were answered best and worst, ties in the list's order."""
    queries = retrieval["queries"] if retrieval else []
    ordered = sorted(queries, key=lambda query: query["rank_text_to_video"])
    half = min(NUM_EXAMPLES, len(ordered) // 2)
    return {"best": ordered[:half], "worst": ordered[::-1][:half]}


def mean_bag_size(bags: BagFacts) -> float:
    """Captions of a bag on average; 0 when there are no clips."""
    captions = sum(size * clips for size, clips in enumerate(bags.clips_by_bag_size))
    return captions / max(bags.clips, 1)


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _percent(number: float) -> str:
    return f"{100 * number:.1f} %"


def _bytes(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.report",
        description="A results folder in, one self-contained HTML page out.",
    )
    parser.add_argument("--results", type=Path, required=True, help="the results folder")
    parser.add_argument("--settings", type=Path, required=True, help="settings/report.json")
    parser.add_argument("--output", type=Path, required=True, help="report/index.html")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Write the report."""
    args = _arguments(argv)
    settings = read_settings(ReportSettings, args.settings)
    facts = gather(args.results, settings.worst_videos)
    write_text(args.output, render(facts, settings))
    log.info("wrote %s", args.output)


if __name__ == "__main__":
    run(main)
