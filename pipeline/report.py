"""Stage `report`: one page that says what went in, what came out, and how it was made.

Reads   the results folder: plan, shards, captions, bags, train, evaluate, settings, rejected.csv,
        benchmarks, and the videos of the examples it shows; with --search, a search's JSON instead
Writes  report/index.html, which holds its charts and pictures and needs no network
By hand `python -m pipeline.report --help`
        `python -m pipeline.report --search found.json --output found.html`
"""

from __future__ import annotations

import argparse
import logging
import statistics
from contextlib import closing
from pathlib import Path

from markupsafe import Markup

from pipeline.cli import run
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import read_json, write_text
from pipeline.formats.settings import read_settings
from pipeline.formats.tags import SEARCH
from pipeline.report_facts import BagFacts, Facts, gather
from pipeline.report_misfits import misfits
from pipeline.report_origin import Spread, gaps, revision, rule_times
from pipeline.report_page import fill
from pipeline.report_pictures import Pictures, pictures_of
from pipeline.settings import ReportSettings

NUM_EXAMPLES = 5
PART, NUM_PARTS = "seconds_", 3
"""What metrics call the seconds of a step's parts; how many of them are shown."""
DIRECTIONS = {"text_to_video": "text → video", "video_to_text": "video → text"}

logger = logging.getLogger(__name__)


def render(facts: Facts, title: str, results: Path, spread: Spread) -> str:
    """The page about a run."""
    shown = {test["protocol"]["name"]: examples(test["queries"]) for test in facts.tests}
    clips = [query for kinds in shown.values() for queries in kinds.values() for query in queries]
    ids = {clip["video_id"] for query in clips for clip in (query, query["hits"][0])}
    with closing(pictures_of(results, ids)) as pictures:
        return fill(
            "report.html",
            facts=facts,
            title=title,
            directions=DIRECTIONS,
            # matplotlib's own drawing, in which it escapes every text.
            charts={name: Markup(svg) for name, svg in draw_charts(facts).items()},  # noqa: S704
            examples=shown,
            pictures=pictures,
            mean_bag_size=mean_bag_size(facts.bags) if facts.bags else 0.0,
            speed=training_speed(facts.steps),
            misfits=misfits(facts),
            gaps=gaps(facts, spread),
            rule_times=rule_times(results / "benchmarks"),
            revision=revision(),
        )


def render_search(path: Path) -> str:
    """The page about what `trainer.search` found.

    Raises:
        ValueError: the file is no result of a search.
    """
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != SEARCH:
        raise ValueError(
            f"{path} is no {SEARCH} file: write one with `python -m trainer.search --output`"
        )
    title = found["query"] if found["kind"] == "text" else found["clip"]["video_id"]
    with closing(Pictures({})) as pictures:
        return fill("report_search.html", found=found, title=title, pictures=pictures)


def training_speed(steps: list[dict]) -> str:
    """One sentence on how fast training was, and what took the time."""
    timed = [step for step in steps if step.get("step_seconds") and step.get("clips_per_second")]
    if not timed:
        return ""
    middle = statistics.median(step["clips_per_second"] for step in timed)
    spent = sum(step["step_seconds"] for step in timed)
    told = f"{middle:,.0f} clips a second (median), {spent / len(timed) * 1000:,.0f} ms a step"
    shares = [f"{seconds / spent:.0%} {part}" for part, seconds in parts_of_steps(timed)]
    return f"{told}: {', '.join(shares)}." if shares else f"{told}."


def parts_of_steps(steps: list[dict]) -> list[tuple[str, float]]:
    """The parts that took most of the steps' time, with their sums in seconds, longest first."""
    sums: dict[str, float] = {}
    for step in steps:
        for key, seconds in step.items():
            if key.startswith(PART) and seconds:
                name = key.removeprefix(PART)
                sums[name] = sums.get(name, 0.0) + seconds
    return sorted(sums.items(), key=lambda item: -item[1])[:NUM_PARTS]


def draw_charts(facts: Facts) -> dict[str, str]:
    """Name to inline SVG; a chart without numbers is an empty string."""
    # Not at the top: it brings matplotlib, which the page of a search does without.
    from pipeline import report_charts as charts

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
    made["times"] = charts.curves(
        "times",
        {
            label: [(step, 1000 * seconds) for step, seconds in _series(facts.steps, key)]
            for label, key in (
                ("whole step", "step_seconds"),
                *((part, PART + part) for part, _ in parts_of_steps(facts.steps)),
            )
        },
        title="Time of a step",
        x="step",
        y="milliseconds",
    )
    made["validation"] = charts.curves(
        "validation",
        {
            **{
                key: [(s, 100 * v) for s, v in _series(facts.validations, key)]
                for key in ("R@10", "R@5", "R@1")
            },
            "chance of R@10": [
                (entry["step"], 100 * min(1.0, 10 / entry["clips"]))
                for entry in facts.validations
                if entry.get("clips")
            ],
        },
        title="Retrieval on the validation split",
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
    for test in facts.tests:
        name = test["protocol"]["name"]
        groups = {label: test[key] for key, label in DIRECTIONS.items()}
        made[f"recall-{name}"] = charts.recalls(f"recall-{name}", groups, test["chance"])
    return made


def _series(entries: list[dict], key: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[key]) for entry in entries if entry.get(key) is not None]


def examples(queries: list[dict]) -> dict[str, list[dict]]:
    """The queries that were answered best and worst, ties in the list's order."""
    ordered = sorted(queries, key=lambda query: query["rank_text_to_video"])
    half = min(NUM_EXAMPLES, len(ordered) // 2)
    return {"best": ordered[:half], "worst": ordered[::-1][:half]}


def mean_bag_size(bags: BagFacts) -> float:
    """Captions of a bag on average; 0 when there are no clips."""
    captions = sum(size * clips for size, clips in enumerate(bags.clips_by_bag_size))
    return captions / max(bags.clips, 1)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandLine(
        prog="python -m pipeline.report",
        description="A results folder, or what a search found, in; one self-contained page out.",
    )
    add = parser.add_argument
    add("--results", type=Path, help="the results folder")
    add("--settings", type=Path, help="settings/report.json")
    add("--search", type=Path, help="instead: a JSON that trainer.search wrote")
    add("--output", type=Path, required=True, help="the page, as report/index.html")
    add("--nodes", type=int, default=0, help="machines that trained; 0: not known")
    add("--ranks", type=int, default=0, help="processes on each of them")
    add("--gpus", type=int, default=0, help="GPUs in each of them")
    args = parser.parse_args(argv)
    if not args.search and not (args.results and args.settings):
        parser.error("give --results and --settings, or --search")
    return args


def main(argv: list[str] | None = None) -> None:
    """Write the report, or the page of a search."""
    args = _arguments(argv)
    if args.search:
        page = render_search(args.search)
    else:
        settings = read_settings(ReportSettings, args.settings)
        facts = gather(args.results, settings.rejected_rows)
        spread = Spread(nodes=args.nodes, ranks=args.ranks, gpus=args.gpus)
        page = render(facts, settings.title, args.results, spread)
    write_text(args.output, page)
    logger.info("wrote %s", args.output)


if __name__ == "__main__":
    run(main)
