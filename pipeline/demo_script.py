"""The script of the demo: what its videos show, what is said over them, and the retrieval test.

Reads nothing; `python -m pipeline.demo_script --output config/demo` writes the four committed files

    steps.csv     what is drawn, and when: the truth, read by `pipeline.demo` alone
    captions.csv  what is said: early or late, in other words, with slips and small talk
    heldout.csv   the steps of the held-out videos at their true times: the retrieval test
    videos.csv    the videos table, with five videos that are broken on purpose

and gives the same bytes each time. It is run by hand, when the script itself is to change.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.cli import run
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import write_csv

SEED = 7
NUM_VIDEOS = 48
STEPS_PER_VIDEO = 8
STEP_SECONDS = 3.0
LATEST_SECONDS = 3.0
"""A caption starts up to so many seconds before or after its step."""
RENDERED = "results/demo"

COLOURS = ("red", "green", "blue", "yellow", "purple", "white")
SHAPES = ("circle", "triangle", "cross", "ring")
MOTIONS = {
    "slides left": ("moves to the left", "is sliding left"),
    "jumps up": ("hops up and down", "is jumping"),
    "spins around": ("is spinning", "turns round and round"),
    "grows": ("gets bigger", "is growing"),
}
"""Each motion's name and how else people say it."""

BROKEN = ("empty", "truncated", "audio", "webpage", "missing")
OPENINGS = ("", "", "so ", "okay so ", "now ", "and then ", "next ", "um ", "all right ")
CLOSINGS = ("", "", "", " like this", " see", " you know", " right there")
MISHEARD = {"red": "read", "blue": "blew", "white": "wide", "ring": "wring", "green": "greene"}
SMALL_TALK = (
    "hey guys welcome back to my channel",
    "do not forget to like and subscribe",
    "let me know in the comments below",
    "I have been doing this for years",
    "it is really not that hard",
    "thanks so much for watching",
    "[Music]",
    "sorry about the noise my neighbour is mowing",
    "you can get these at any store",
    "before we start a word from our sponsor",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a video shows, and when (seconds)."""

    video_id: str
    start: float
    end: float
    colour: str
    shape: str
    motion: str

    @property
    def text(self) -> str:
        """The step in plain words."""
        return f"the {self.colour} {self.shape} {self.motion}"


def read_script(path: str | Path) -> dict[str, list[Step]]:
    """Read steps.csv: the steps of each video in time order.

    Raises:
        ValueError: a column is missing, or a colour, shape or motion is not among those known.
    """
    script: dict[str, list[Step]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                start, end = float(row.pop("start")), float(row.pop("end"))
                step = Step(start=start, end=end, **row)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path} is no script of the demo: {error}") from None
            known = {"colour": COLOURS, "shape": SHAPES, "motion": MOTIONS}
            for name, allowed in known.items():
                if getattr(step, name) not in allowed:
                    raise ValueError(
                        f"{path}: {name} {getattr(step, name)!r}, allowed: {', '.join(allowed)}"
                    )
            script.setdefault(step.video_id, []).append(step)
    return script


def is_held_out(index: int) -> bool:
    """Every fourth video is kept for validation and the retrieval test."""
    return index % 4 == 3


def make_script() -> dict[str, list[Step]]:
    """All videos' steps: each of the 96 kinds stands once in the held-out videos, thrice in others.

    Steps of a video are drawn one after the other, with short pauses between them.
    """
    rng = random.Random(SEED)
    kinds = {True: _kinds(rng), False: _kinds(rng)}
    script = {}
    for index in range(NUM_VIDEOS):
        video_id, now, steps = f"howto-{index:02d}", rng.uniform(1.5, 3.0), []
        for _ in range(STEPS_PER_VIDEO):
            start = round(now, 1)
            end = round(start + STEP_SECONDS, 1)
            steps.append(Step(video_id, start, end, *next(kinds[is_held_out(index)])))
            now = end + rng.uniform(0.0, 0.6)
        script[video_id] = steps
    return script


def _kinds(rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """Endless rounds of all combinations, each round in an order of its own."""
    kinds = [
        (colour, shape, motion) for colour in COLOURS for shape in SHAPES for motion in MOTIONS
    ]
    while True:
        rng.shuffle(kinds)
        yield from list(kinds)


def narrate(script: dict[str, list[Step]]) -> list[tuple[str, float, float, str]]:
    """What is said: rows of captions.csv in order of time, broken videos' captions included."""
    rng = random.Random(SEED + 1)
    rows = []
    for video_id, steps in script.items():
        spoken = [_speak(step, rng) for step in steps]
        spoken += [_chat(video_id, steps[-1].end, rng) for _ in range(3)]
        rows += sorted(spoken)
    for name in BROKEN:
        rows += sorted(_chat(f"broken-{name}", 20.0, rng) for _ in range(2))
    return rows


def _speak(step: Step, rng: random.Random) -> tuple[str, float, float, str]:
    start = max(0.0, step.start + rng.uniform(-LATEST_SECONDS, LATEST_SECONDS))
    end = start + rng.uniform(2.0, 3.0)
    motion = rng.choice((step.motion, step.motion, *MOTIONS[step.motion]))
    words = [rng.choice(("the", "the", "this", "our")), step.colour, step.shape, *motion.split()]
    kept = [_hear(word, rng) for word in words if rng.random() > 0.07]
    text = rng.choice(OPENINGS) + " ".join(kept) + rng.choice(CLOSINGS)
    return step.video_id, round(start, 2), round(end, 2), text


def _hear(word: str, rng: random.Random) -> str:
    return MISHEARD.get(word, word) if rng.random() < 0.05 else word


def _chat(video_id: str, seconds: float, rng: random.Random) -> tuple[str, float, float, str]:
    start = rng.uniform(0.0, seconds - 2.5)
    return video_id, round(start, 2), round(start + 2.5, 2), rng.choice(SMALL_TALK)


def list_videos(script: dict[str, list[Step]]) -> list[tuple[str, str, str]]:
    """Rows of videos.csv: the broken videos stand among the good ones."""
    rows = [
        (video_id, f"{RENDERED}/{video_id}.mp4", "val" if is_held_out(index) else "train")
        for index, video_id in enumerate(script)
    ]
    for place, name in enumerate(BROKEN):
        folder = "videos" if name == "missing" else RENDERED  # nobody ever makes the missing one
        rows.insert(6 + 10 * place, (f"broken-{name}", f"{folder}/broken-{name}.mp4", "train"))
    return rows


def write_script(output: Path) -> None:
    """Write the four files."""
    script = make_script()
    steps = [step for steps in script.values() for step in steps]
    held_out = {video_id for index, video_id in enumerate(script) if is_held_out(index)}
    write_csv(
        output / "steps.csv",
        ["video_id", "start", "end", "colour", "shape", "motion"],
        [(s.video_id, s.start, s.end, s.colour, s.shape, s.motion) for s in steps],
    )
    columns = ["video_id", "start", "end", "text"]
    tests = [(s.video_id, s.start, s.end, s.text) for s in steps if s.video_id in held_out]
    write_csv(output / "heldout.csv", columns, tests)
    write_csv(output / "captions.csv", columns, narrate(script))
    write_csv(output / "videos.csv", ["video_id", "path", "split"], list_videos(script))


def main(argv: list[str] | None = None) -> None:
    """Write the demo's script."""
    parser = CommandLine(
        prog="python -m pipeline.demo_script",
        description="Nothing in; the demo's steps, captions, videos table and retrieval test out.",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the four CSV files")
    write_script(parser.parse_args(argv).output)


if __name__ == "__main__":
    run(main)
