"""A tiny data set, and the real `snakemake` on it: what the tests of the workflow share."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.videos import numbered, steady, write_video

SNAKEMAKE = ("-m", "snakemake")
ROOT = Path(__file__).resolve().parents[1]
RATE = 8
SECONDS = 8
TARGETS = {"default", "all", "features", "all_manifest", "all_captions", "all_encode", "all_bags"}
TARGETS |= {"all_embeddings"}
DOWNSTREAM = ["train", "evaluate heldout", "report"]
WORDS = ("stir", "fold", "chop", "pour", "whisk", "bake", "slice", "mix", "knead", "roast", "peel")
_JOB = re.compile(
    r"^(?:local)?(?:rule|checkpoint) (?P<rule>\w+):\n(?P<facts>(?: {4}.*\n)*)", re.MULTILINE
)
_WILDCARD = re.compile(r"^ {4}wildcards: \w+=(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One run of snakemake: its jobs such as `train` or `encode 00001`, and all it said."""

    status: int
    jobs: list[str]
    text: str

    def of(self, *rules: str) -> list[str]:
        """The jobs of these rules (or just these jobs), sorted."""
        return sorted(job for job in self.jobs if {job, job.split()[0]} & {*rules})


def draw(index: int, video: int):
    """Frame `index` of a video that looks like no other."""
    return numbered(index * 37 + video * 1009, width=64, height=48)


def add_video(folder: Path, number: int, *, split: str = "train", seconds: int = SECONDS) -> str:
    """Render a video, write its captions and append it to the table; return its id."""
    video_id = f"v{number}"
    path = folder / f"videos/{video_id}.mp4"
    path.parent.mkdir(exist_ok=True)
    render(path, number, seconds=seconds)
    write_captions(folder, number)
    table = folder / "videos.csv"
    if not table.exists():
        table.write_text("video_id,path,split\n")
    with open(table, "a") as file:
        file.write(f"{video_id},videos/{video_id}.mp4,{split}\n")
    return video_id


def render(path: Path, number: int, *, seconds: int = SECONDS) -> None:
    """Write a video of its own look."""
    times = steady(RATE * seconds, RATE)
    write_video(path, times, rate=RATE, draw=lambda index: draw(index, number))


def write_captions(folder: Path, number: int, *, offset: float = 0.0) -> None:
    """Write the captions of a video: four sentences of its own words."""
    path = folder / f"captions/v{number}.csv"
    path.parent.mkdir(exist_ok=True)
    lines = ["start,end,text"]
    for row in range(4):
        words = [WORDS[(number * 4 + row + step * 5) % len(WORDS)] for step in range(3)]
        lines.append(f"{row * 2 + offset},{row * 2 + 1.8 + offset},{' '.join(words)}")
    path.write_text("\n".join(lines) + "\n")


def write_config(folder: Path, **sections: dict) -> None:
    """Write the config of tests/config.yaml with `sections` over it."""
    values = yaml.safe_load((ROOT / "tests/config.yaml").read_text(encoding="utf-8"))
    (folder / "config").mkdir(exist_ok=True)
    (folder / "my.yaml").write_text(yaml.safe_dump(_merged(values, sections)))


def _merged(values: dict, over: dict) -> dict:
    merged = dict(values)
    for key, value in over.items():
        old = values.get(key)
        both = isinstance(value, dict) and isinstance(old, dict)
        merged[key] = _merged(old, value) if both else value
    return merged


def command(folder: Path, *arguments: str, program: tuple[str, ...] = SNAKEMAKE) -> list[str]:
    """The command line of snakemake on the data set in `folder`."""
    start = [sys.executable, *program, "--snakefile", str(ROOT / "Snakefile")]
    place = ["--directory", str(folder), "--configfile", str(folder / "my.yaml")]
    return [*start, *place, "--cores", "2", *arguments]


def snakemake(
    folder: Path, *arguments: str, status: int | None = 0, program: tuple[str, ...] = SNAKEMAKE
) -> Run:
    """Run snakemake to its end; `status` None accepts any exit status."""
    done = subprocess.run(
        command(folder, *arguments, program=program),
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=540,  # a busy machine; below pytest's own limit
        check=False,
    )
    assert status is None or done.returncode == status, done.stdout + _logs(folder)
    return Run(done.returncode, jobs_of(done.stdout), done.stdout)


def _logs(folder: Path) -> str:
    texts = [f"--- {p}\n{p.read_text()[-2000:]}" for p in sorted(folder.glob("logs/*/*.log"))]
    return "\n".join(texts)


def jobs_of(text: str) -> list[str]:
    """The jobs that a run started, or that a dry run would start, target rules left out."""
    jobs = []
    for found in _JOB.finditer(text):
        wildcard = _WILDCARD.search(found["facts"])
        jobs.append(" ".join([found["rule"], *([wildcard[1]] if wildcard else [])]))
    return [job for job in jobs if job not in TARGETS]


def start(folder: Path, *arguments: str, program: tuple[str, ...] = SNAKEMAKE) -> subprocess.Popen:
    """Start snakemake in a process group of its own, as a terminal does."""
    with open(folder / "run.txt", "w") as output:
        return subprocess.Popen(
            command(folder, *arguments, program=program),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def processes_in(folder: Path) -> dict[int, list[str]]:
    """Process id to command line of everything that works in `folder`."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            inside = os.readlink(process / "cwd") == str(folder)
        except OSError:  # it has ended
            continue
        if inside:
            found[int(process.name)] = words
    return found


def stage_processes(folder: Path, module: str) -> list[int]:
    """Ids of the processes that run a stage in `folder`."""
    return [
        number
        for number, words in processes_in(folder).items()
        # The first -m: the command line of a launcher names its ranks' module too.
        if "-m" in words and words[words.index("-m") + 1] == module
    ]


def wait_for_stage(folder: Path, module: str, run: subprocess.Popen) -> int:
    """Wait until a stage runs in `folder` and return its process id."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = stage_processes(folder, module)
        if found:
            return found[0]
        assert run.poll() is None, (folder / "run.txt").read_text()
        time.sleep(0.02)
    raise AssertionError(f"{module} did not start: {(folder / 'run.txt').read_text()}")


def interrupt(run: subprocess.Popen) -> int:
    """Press Ctrl-C and wait for the end."""
    os.killpg(run.pid, signal.SIGINT)
    return run.wait(timeout=120)


def make_data(folder: Path) -> Path:
    """Five videos of 8 s with captions, which make three shards; the last is for validation."""
    folder.mkdir(exist_ok=True)
    for number in range(5):
        add_video(folder, number, split="val" if number == 4 else "train")
    write_config(folder)
    return folder


def copy_of(base: Path, folder: Path) -> Path:
    """A copy with the same modification times and the same memory of what ran."""
    return Path(shutil.copytree(base, folder, symlinks=True))


def train_starts(folder: Path) -> list[str]:
    """What each start of the training rule said, the first first; a heading begins each."""
    text = (folder / "logs/train/all-starts.log").read_text()
    before, *starts = re.split(
        r"^==> \d{4}-\d\d-\d\d \d\d:\d\d:\d\d on .*\n", text, flags=re.MULTILINE
    )
    assert before == ""
    return starts


def checkpoints(folder: Path) -> set[Path]:
    """What trainings have saved so far."""
    return set((folder / "results/train").glob("*/step-*"))
