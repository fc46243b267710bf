"""How a run was made, and what it does not say anything about."""

from __future__ import annotations

import csv
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline.report_facts import Facts

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "demo": "pipeline.demo", "plan": "pipeline.plan", "manifest": "pipeline.manifest",
    "captions": "pipeline.captions", "captions_summary": "pipeline.captions --summarize",
    "encode": "pipeline.encode", "rejected": "pipeline.rejected",
    "vocabulary": "pipeline.vocabulary", "bags": "pipeline.bags", "train": "trainer.launch",
    "evaluate": "trainer.evaluate", "embeddings": "trainer.embeddings",
}  # fmt: skip
"""What each timed rule runs, in the order of the flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTime:
    """What the jobs of one rule took, as Snakemake measured it."""

    name: str
    command: str
    jobs: int
    seconds: float
    longest: float
    megabytes: float
    """The largest resident memory of a job; 0: too short to be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How training was spread, as the config says; 0: not known."""

    nodes: int
    ranks: int
    gpus: int


def rule_times(folder: Path) -> list[RuleTime]:
    """Sum up benchmarks/{rule}/*.tsv, each with one line for a job."""
    found = []
    for name, command in COMMANDS.items():
        jobs = [_job(path) for path in sorted((folder / name).glob("*.tsv"))]
        if jobs:
            seconds = [job[0] for job in jobs]
            most = max(job[1] for job in jobs)
            found.append(
                RuleTime(
                    name=name, command=command, jobs=len(jobs), seconds=sum(seconds),
                    longest=max(seconds), megabytes=most,
                )
            )  # fmt: skip
    return found


def _job(path: Path) -> tuple[float, float]:
    """Seconds and megabytes; Snakemake writes `NA` or `-` for what it could not measure."""
    with open(path, newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file, delimiter="\t"), {})
    return _number(row.get("s")), _number(row.get("max_rss"))


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def revision(root: Path = ROOT) -> str:
    """The revision of the code as git names it, with `-dirty` when changed; empty without git."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gaps(facts: Facts, spread: Spread) -> list[str]:
    """What nobody should read into this run."""
    lines = _machine_gaps(facts, spread)
    weights = facts.settings.get("encode", {}).get("weights")
    if weights == "random":
        lines.append(
            "The encoder's weights are random: the numbers say that the pipeline works, not how"
            " good a model of real weights would be."
        )
    if not facts.tests:
        lines.append("No retrieval was tested.")
    names = {test["protocol"]["name"] for test in facts.tests}
    lines += [
        f"The benchmark {name} was not tested: its list is in no protocol of this run."
        for name in ("youcook2", "msrvtt")
        if name not in names
    ]
    for test in facts.tests:
        videos = test["missing"].get("videos", {})
        if videos:
            shown = ", ".join(f"{video} ({why.replace('_', ' ')})" for video, why in videos.items())
            lines.append(
                f"{test['protocol']['name']}: {len(videos)} videos are missing from the test:"
                f" {_shortened(shown)}."
            )
    lines.append("One training run of one seed: another seed would give somewhat other numbers.")
    return lines


def _machine_gaps(facts: Facts, spread: Spread) -> list[str]:
    lines = []
    if "cuda" not in str(facts.features.provenance.get("device", "cpu")):
        lines.append("Encoding used no GPU.")
    if not facts.steps:
        return [*lines, "Nothing was trained."]
    if spread.nodes and not spread.gpus:
        lines.append("Training used no GPU: neither NCCL nor GPU kernels were exercised.")
    if spread.nodes == 1:
        lines.append("Training ran on one machine: nothing went over a network.")
    if spread.nodes * spread.ranks == 1:
        lines.append("Training ran in one process: gradients over ranks were not needed.")
    elif spread.nodes:
        lines.append(
            "The gradients over the ranks were not compared with one process's in this run; the"
            " tests do that on the CPU."
        )
    return lines


def _shortened(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit].rsplit(",", 1)[0] + ", …"
