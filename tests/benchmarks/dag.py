"""How heavy the workflow is by itself: plans, dry runs and changes with 1.2 million videos.

Reads   nothing: it makes a videos table and one captions table; of the videos only one exists, as a
        file of a few bytes, for the plan looks at a file and does not open it
Writes  a table of jobs, seconds and memory to the standard output; its files go to a scratch folder
Run     python -m tests.benchmarks.dag            (half an hour, 4 GB of disk)
        python -m tests.benchmarks.dag --quick    (12,000 rows, two minutes)

Snakemake, its jobs and the plan are real. The other stages are stand-ins that leave empty files:
what they cost is measured elsewhere.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parents[2]
WORDS = (
    "stir",
    "the",
    "sauce",
    "until",
    "it",
    "thickens",
    "then",
    "fold",
    "in",
    "chopped",
    "herbs",
)
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
    (folder / "videos").mkdir(parents=True)
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
    with open(path, "w") as file:
        file.write("video_id,start,end,text\n")
        for number in range(captions):
            video, place = number * videos // captions, number % 113
            text = " ".join(WORDS[(number + step * step) % len(WORDS)] for step in range(8))
            file.write(f"v{video:07d},{place * 3.1:.2f},{place * 3.1 + 4:.2f},{text}\n")


def make_stand_ins(folder: Path) -> None:
    """Stages in the working directory, where `python -m` looks first."""
    for package, stages in STAGES.items():
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(PACKAGE)
        for stage in stages:
            (folder / package / f"{stage}.py").write_text(STAND_IN)


def changes(videos: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """What people do to their data, beginning with nothing."""

    def append(folder: Path, count: int) -> None:
        with open(folder / "videos.csv", "a") as file:
            file.writelines(row(videos + number) for number in range(count))

    def remove(folder: Path) -> None:
        table = folder / "videos.csv"
        text = table.read_text()
        table.write_text(text.replace(row(videos // 2), f"v{videos // 2:07d},\n", 1))

    def replace(folder: Path) -> None:
        (folder / "videos/v0000000.mp4").write_bytes(b"another video")

    yield "nothing changed, plan asked for", lambda folder: None
    yield "one video added", lambda folder: append(folder, 1)
    yield "1 % of videos added", lambda folder: append(folder, videos // 100)
    yield "one video removed", remove
    yield "one video replaced", replace


def measure_workflow(folder: Path, videos: int, per_shard: int) -> Iterator[list[str]]:
    """Rows of the table: the plan, dry runs, and each change on a copy of the finished run."""
    base = folder / "base"
    make_data(base, videos, videos, per_shard)
    make_stand_ins(base)
    snakemake(base, "results/settings/plan.json")
    yield line("plan, for the first time", snakemake(base, "results/plan"))
    yield line("dry run of all jobs", snakemake(base, "--dry-run"))
    yield line("all jobs, with stand-ins", snakemake(base))
    yield line("dry run, nothing to do", snakemake(base, "--dry-run"))
    for what, change in changes(videos):
        copy = folder / "copy"
        shutil.copytree(base, copy)
        change(copy)
        # Above `track_files_up_to` videos a replaced file needs -R; elsewhere it does no harm.
        yield line(what, snakemake(copy, "-R", "plan"))
        shutil.rmtree(copy)


def measure_split(folder: Path, videos: int, captions: int, per_shard: int) -> Iterator[list[str]]:
    """Rows of the table: one captions table split into its parts, small and large."""
    for count in (captions // 10, captions):
        write_captions(folder / "many.csv", videos, count)
        words = [str(folder / "many.csv"), str(folder / "parts"), str(videos), str(per_shard)]
        cost = run([sys.executable, "-c", SPLIT, *words], folder)
        yield line(f"{count:,} captions split", cost)
        shutil.rmtree(folder / "parts")


def line(what: str, cost: Cost) -> list[str]:
    """A row of the table."""
    jobs = str(cost.jobs) if cost.jobs else "-"
    return [what, jobs, f"{cost.seconds:.1f}", f"{cost.megabytes:.0f}"]


def main(argv: list[str] | None = None) -> None:
    """Measure, printing each row as it is known."""
    parser = argparse.ArgumentParser(
        description="Nothing in; jobs, seconds and memory of plans and dry runs out."
    )
    parser.add_argument("--quick", action="store_true", help="12,000 videos instead of 1.2 million")
    parser.add_argument("--only", choices=("workflow", "split"), help="one half of it")
    arguments = parser.parse_args(argv)
    videos, captions, per_shard = 1_200_000, 10_000_000, 1000
    if arguments.quick:
        videos, captions, per_shard = 12_000, 100_000, 100
    measures = {
        "workflow": lambda folder: measure_workflow(folder, videos, per_shard),
        "split": lambda folder: measure_split(folder, videos, captions, per_shard),
    }
    sys.stdout.write("| what | jobs | seconds | MB |\n|---|---|---|---|\n")
    for name in [arguments.only] if arguments.only else measures:
        with tempfile.TemporaryDirectory(prefix="bagpipe-dag-") as folder:
            for cells in measures[name](Path(folder)):
                sys.stdout.write(f"| {' | '.join(cells)} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
