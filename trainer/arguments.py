"""The command line of `trainer.train`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pipeline.formats.command_line import CommandLine


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Paths and how to run; nothing here changes a result."""
    parser = CommandLine(
        prog="python -m trainer.train",
        description="Bag files and feature shards in, a trained model and its metrics out. Started"
        " by trainer.launch; alone, it is one process. With --replay a step that was not finite is"
        " done again and explained; nothing else is needed then.",
    )
    _add_paths(parser)
    add = parser.add_argument
    add("--backend", default="auto", help="nccl, gloo or auto")
    add("--workers", type=workers, default=0, help="loader processes of a rank, or auto")
    add(
        "--chunk",
        type=at_least(0),
        default=0,
        help="clips that go through the towers at once, 0: all",
    )
    add("--bank-on-cpu", type=switch, default=False, help="1: keep the memory bank in CPU memory")
    add("--bucket-cap-mb", type=at_least(1), default=25, help="MB of gradients in one exchange")
    add("--gradient-as-bucket-view", type=switch, default=True, help="0: keep gradients twice")
    add(
        "--find-unused-parameters", type=switch, default=False, help="1: name what gets no gradient"
    )
    add("--save-every", type=at_least(1), default=50, help="steps between checkpoints")
    add("--keep-checkpoints", type=at_least(1), default=3, help="checkpoints that are kept")
    add("--verify-shards", type=switch, default=False, help="1: hash all bytes of the shards first")
    add("--log-every", type=at_least(1), default=5, help="steps between lines of metrics")
    add(
        "--validate-every", type=at_least(0), default=50, help="steps between validations, 0: never"
    )
    add("--timeout-seconds", type=float, default=600, help="longest wait for other ranks or data")
    add("--stall-seconds", type=float, default=0, help="log all stacks after so long a step, 0: no")
    add("--anomaly", type=switch, default=False, help="1: name the operation that gives NaN; slow")
    add("--profile", default="0:0", help="START:STEPS of a torch.profiler trace; 0 steps: none")
    add(
        "--stop-at",
        type=at_least(0),
        help="save and stop at this step; a new start goes on from it",
    )
    add("--rehearse", action="store_true", help="50 steps, a save and a resume; no run")
    add("--replay", metavar="DUMP", help="explain a not-finite-step-*.json instead of training")
    return parser.parse_args(argv)


def _add_paths(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--settings", required=True, help="settings/train.json")
    add("--plan", required=True, help="folder of the plan: which shards exist")
    add("--bags", required=True, help="folder of bag files")
    add("--shards", required=True, help="folder of feature shards")
    add("--vocabulary", required=True, help="vocabulary.txt")
    add("--state", required=True, help="folder for the run's own folder, or a run's own folder")
    add("--output", required=True, help="model.pt, written at the end")
    add("--metrics", required=True, help="metrics.jsonl, written at the end")


def workers(text: str) -> int | str:
    """A number of loader processes, or `auto`."""
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a number")
    return text if text == "auto" else int(text)


def at_least(lowest: int) -> Callable[[str], int]:
    """A type of whole numbers from `lowest` on."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no whole number that is at least {lowest}"
            )
        return value

    return number


def switch(text: str) -> bool:
    """0 or 1."""
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 (no) nor 1 (yes)")
    return text == "1"


def replay_path(argv: list[str]) -> str | None:
    """What follows --replay, if it is there."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--replay")
    return parser.parse_known_args(argv)[0].replay
