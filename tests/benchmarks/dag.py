"""How heavy the workflow is by itself: plans, dry runs and changes with 1.2 million videos.

Reads   nothing: it makes a videos table and one captions table; of the videos only one exists, as a
        file of a few bytes, for the plan looks at a file and does not open it
Writes  a table of jobs, seconds and memory to the standard output, with --output the same as JSON;
        its files go to a scratch folder
Run     python -m tests.benchmarks.dag                     (a quarter of an hour, 3 GB)
        python -m tests.benchmarks.dag --quick             (does it run?)

Snakemake, its jobs and the plan are real. The other stages are stand-ins that leave empty files:
what they cost is measured elsewhere. The changes follow one another, each on what the one before
left, as they do in life.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.benchmarks.measure import begin, say

ROOT = Path(__file__).resolve().parents[2]
ALL, PERCENT = "all jobs, with stand-ins", "1 % of videos added"
SENTENCE = "stir the sauce until it thickens then fold in chopped herbs"
STAND_IN = """
import sys
words = sys.argv[1:]
for option, path in zip(words, words[1:]):
    if option in ("--output", "--index", "--metrics"):
        open(path, "w").close()
"""
STAGES = {
    "pipeline": ("manifest", "captions", "encode", "rejected", "vocabulary", "bags", "report"),
    "trainer": ("launch", "evaluate"),
}
# Found before the project's own, which it still leads to for everything else.
PACKAGE = f"__path__.append({str(ROOT)!r} + '/' + __name__)\n"
SPLIT = """
import sys
from pathlib import Path
from pipeline.caption_parts import split_captions
rows, shard = int(sys.argv[3]), int(sys.argv[4])
split_captions(sys.argv[1], {f"v{i:07d}": i // shard for i in range(rows)}, Path(sys.argv[2]))
"""


@dataclass(frozen=True)
class Cost:
    """What a command cost."""

    seconds: float
    megabytes: float
    """The largest process, in 10^6 bytes."""
    text: str

    @property
    def jobs(self) -> int:
        """Jobs that a run had, or that a dry run promises; without the target."""
        done = re.findall(r"^(\d+) of \d+ steps", self.text, re.MULTILINE)
        promised = re.findall(r"^total +(\d+)$", self.text, re.MULTILINE)
        target = len(re.findall(r"^default +1$", self.text, re.MULTILINE))
        return int((done or promised or [0])[-1]) - min(target, 1)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    cost: Cost

    def __str__(self) -> str:
        facts = self.facts()
        return f"| {self.what} | {facts['jobs']} | {facts['seconds']:.1f} | {facts['MB']:.0f} |"

    def facts(self) -> dict[str, object]:
        """The same for JSON."""
        cost = self.cost
        return {
            "what": self.what, "jobs": cost.jobs, "seconds": round(cost.seconds, 2),
            "MB": round(cost.megabytes, 1),
        }  # fmt: skip


def run(argv: list[str], folder: Path) -> Cost:
    """Run a command to its end; it must succeed."""
    output = folder / "said.txt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    with open(output, "w") as file:
        process = subprocess.Popen(
            argv, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    text = output.read_text()
    if status:
        raise ValueError(f"{' '.join(argv)} failed:\n{text[-3000:]}")
    return Cost(seconds, usage.ru_maxrss * 1024 / 1e6, text)


def snakemake(folder: Path, *arguments: str) -> Cost:
    """Run snakemake in `folder`, whose log shows the number of jobs alone."""
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    options = ["--cores", "2", "--scheduler", "greedy", "--quiet=rules"]
    return run([*words, *options, "--configfile=my.yaml", *arguments], folder)


def make_data(folder: Path, videos: int, captions: int, per_shard: int) -> None:
    """A table of videos, one of which exists, captions for them in their order, and a config."""
    (folder / "videos").mkdir()
    (folder / "videos/v0000000.mp4").write_bytes(b"a video")
    with open(folder / "videos.csv", "w") as file:
        file.write("video_id,path\n")
        file.writelines(row(number) for number in range(videos))
    write_captions(folder / "captions.csv", videos, captions)
    config = yaml.safe_load((ROOT / "tests/config.yaml").read_text(encoding="utf-8"))
    config["plan"] = {
        "videos": "videos.csv",
        "captions": "captions.csv",
        "videos_per_shard": per_shard,
    }
    (folder / "my.yaml").write_text(yaml.safe_dump(config))


def row(number: int) -> str:
    """A line of the videos table."""
    return f"v{number:07d},videos/v{number:07d}.mp4\n"


def write_captions(path: Path, videos: int, captions: int) -> None:
    """Captions of 8 words, spread evenly over the videos."""
    words = SENTENCE.split()
    with open(path, "w") as file:
        file.write("video_id,start,end,text\n")
        for number in range(captions):
            video, place = number * videos // captions, number % 113
            text = " ".join(words[(number + step * step) % len(words)] for step in range(8))
            file.write(f"v{video:07d},{place * 3.1:.2f},{place * 3.1 + 4:.2f},{text}\n")


def make_stand_ins(folder: Path) -> None:
    """Stages in the working directory, where `python -m` looks first."""
    for package, stages in STAGES.items():
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(PACKAGE)
        for stage in stages:
            (folder / package / f"{stage}.py").write_text(STAND_IN)


def append(folder: Path, first: int, count: int) -> None:
    """Add rows at the end of the videos table."""
    with open(folder / "videos.csv", "a") as file:
        file.writelines(row(first + number) for number in range(count))


def remove(folder: Path, number: int) -> None:
    """Empty a path in the videos table."""
    table = folder / "videos.csv"
    table.write_text(table.read_text().replace(row(number), f"v{number:07d},\n", 1))


def replace(folder: Path) -> None:
    """Put another file in the place of the one video that exists."""
    (folder / "videos/v0000000.mp4").write_bytes(b"another video")


def change_captions(folder: Path) -> None:
    """Change one row of the captions table, the last.

    In place: a process that held the table would lend its peak of memory to those that it starts.
    """
    with open(folder / "captions.csv", "r+b") as file:
        tail = file.seek(-4096, os.SEEK_END)
        text = file.read()
        file.truncate(tail + text.rindex(b","))
        file.seek(0, os.SEEK_END)
        file.write(b",another text\n")


def changes(videos: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """What people do to their data, beginning with nothing."""
    percent = videos // 100
    yield "nothing changed, plan asked for", lambda folder: None
    yield "one video added", lambda folder: append(folder, videos, 1)
    yield f"{PERCENT} ({percent:,})", lambda folder: append(folder, videos + 1, percent)
    yield "one video removed", lambda folder: remove(folder, videos // 2)
    yield "one video replaced", replace
    yield "one row of the captions table changed", change_captions


def measure_workflow(folder: Path, videos: int, per_shard: int, *, quick: bool) -> Iterator[Row]:
    """The plan, dry runs, all jobs, and each change to what they left."""
    make_data(folder, videos, videos, per_shard)
    make_stand_ins(folder)
    snakemake(folder, "results/settings/plan.json")
    yield Row("plan, for the first time", snakemake(folder, "results/plan"))
    yield Row("dry run of all jobs", snakemake(folder, "--dry-run"))
    yield Row(ALL, snakemake(folder))
    yield Row("dry run, nothing to do", snakemake(folder, "--dry-run"))
    for what, change in changes(videos):
        if quick and not what.startswith(PERCENT):
            continue
        change(folder)
        # Above `track_files_up_to` videos a replaced file needs -R; elsewhere it does no harm.
        yield Row(what, snakemake(folder, "-R", "plan"))
    yield Row("dry run after all of them", snakemake(folder, "--dry-run"))


def measure_split(folder: Path, videos: int, captions: int, per_shard: int) -> Iterator[Row]:
    """One captions table split into its parts, small and large; then again with a changed row."""
    table, parts = folder / "captions.csv", folder / "parts"
    words = [str(table), str(parts), str(videos), str(per_shard)]
    for count in (captions // 10, captions):
        shutil.rmtree(parts, ignore_errors=True)
        write_captions(table, videos, count)
        yield Row(f"{count:,} captions split", run([sys.executable, "-c", SPLIT, *words], folder))
    before = {path: path.stat().st_mtime_ns for path in parts.iterdir()}
    change_captions(folder)
    cost = run([sys.executable, "-c", SPLIT, *words], folder)
    written = sum(before.get(path) != path.stat().st_mtime_ns for path in parts.iterdir())
    yield Row(f"the same with a changed row: {written} of {len(before)} files written", cost)


def main(argv: list[str] | None = None) -> None:
    """Measure, printing each row as it is known."""
    parser = argparse.ArgumentParser(
        description="Nothing in; jobs, seconds and memory of plans and dry runs out."
    )
    add = parser.add_argument
    add("--videos", type=int, default=1_200_000, help="rows of the videos table")
    add("--captions", type=int, default=10_000_000, help="rows of the split captions table")
    add("--videos-per-shard", type=int, default=1000)
    add("--only", choices=("workflow", "split"), help="one half of it")
    add("--output", type=Path, help="a JSON file of the rows")
    arguments = begin(parser, argv)
    if arguments.quick:
        arguments.videos, arguments.captions, arguments.videos_per_shard = 400, 4000, 200
    sizes = {"videos": arguments.videos, "per_shard": arguments.videos_per_shard}
    measures = {
        "workflow": lambda folder: measure_workflow(folder, **sizes, quick=arguments.quick),
        "split": lambda folder: measure_split(folder, captions=arguments.captions, **sizes),
    }
    rows = []
    say(f"| {arguments.videos:,} videos | jobs | seconds | MB |\n|---|---|---|---|")
    for name in [arguments.only] if arguments.only else measures:
        with tempfile.TemporaryDirectory(prefix="bagpipe-dag-") as folder:
            for measured in measures[name](Path(folder)):
                rows.append(measured.facts())
                say(str(measured))
    jobs = {row["what"].split(" (")[0]: row["jobs"] for row in rows}
    if ALL in jobs:
        say(f"\n{PERCENT} / {ALL}  {jobs[PERCENT] / jobs[ALL]:.3f} of the jobs  (reach 0.02)")
    if arguments.output:
        facts = {"cores": os.cpu_count(), "arguments": sizes, "rows": rows}
        arguments.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
