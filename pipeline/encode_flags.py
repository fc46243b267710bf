"""The command line of the encode stage."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from pipeline.decode_limits import USUAL_LIMITS, Limits
from pipeline.formats.command_line import CommandLine

AUTO = "auto"

logger = logging.getLogger(__name__)


def batch_size(text: str) -> int | str:
    """A whole number, or `auto`."""
    return text if text == AUTO else int(text)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The flags of `decode_limits.Limits`."""
    usual = USUAL_LIMITS
    parser.add_argument(
        "--video-timeout-seconds",
        type=float,
        default=usual.video_seconds,
        help="a video whose decoding takes longer ends as timeout...",
    )
    parser.add_argument(
        "--video-timeout-factor",
        type=float,
        default=usual.factor,
        help="...plus so many seconds for each second that it lasts",
    )
    parser.add_argument(
        "--videos-per-worker",
        type=int,
        default=usual.videos_per_worker,
        help="a decoding process is replaced after so many videos",
    )


def limits_of(options: argparse.Namespace) -> Limits:
    """What one video may cost."""
    return Limits(
        video_seconds=options.video_timeout_seconds,
        factor=options.video_timeout_factor,
        videos_per_worker=options.videos_per_worker,
    )


def add_shard(parser: argparse.ArgumentParser) -> None:
    """What the workflow gives: one shard's manifest and the frozen settings."""
    group = parser.add_argument_group("a shard of the workflow (with --output FILE.tar)")
    group.add_argument("--manifest", type=Path, help="the shard's manifest")
    group.add_argument("--settings", type=Path, help="the frozen encode section")
    group.add_argument("--index", type=Path, help="the index to write beside the tar")


def add_table(parser: argparse.ArgumentParser) -> None:
    """What features need that no workflow stands behind."""
    group = parser.add_argument_group("videos of a table, no workflow (with --output FOLDER)")
    group.add_argument("--videos", type=Path, help="CSV or parquet: video_id,path")
    group.add_argument(
        "--csv", type=Path, help="instead: captions, video_id,start,end,text; files named by id"
    )
    group.add_argument(
        "--video-root", type=Path, default=Path(), help="where paths begin, or files are looked for"
    )
    group.add_argument("--encoder", default="s3d", help="as encode.encoder of the config")
    group.add_argument("--weights", default="random", help="a state dict; random says nothing")
    group.add_argument("--features", help="as encode.output; of s3d, embedding (512 numbers)")
    group.add_argument("--frame-size", type=int, help="pixels on a side; 224, of c3d 112")
    group.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    group.add_argument("--sample-rate", type=float, default=0.5, help="vectors a second")
    group.add_argument("--videos-per-shard", type=int, default=1000, help="one tar for so many")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line: either a shard or a table, and how to run."""
    parser = CommandLine(
        prog="python -m pipeline.encode",
        description="A shard's manifest, or a table of videos in; features (tar) and their index"
        " (parquet) out.",
    )
    parser.add_argument("--output", type=Path, required=True, help="the tar, or the folder of tars")
    add_shard(parser)
    add_table(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--batch", type=batch_size, default=8, help="windows in one batch, or auto: probed once"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="decoding processes; 0: none (and a video that hangs is waited for)",
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of the network on a CPU")
    parser.add_argument(
        "--retry", default="all", help="failed videos to try again: all, none, or reasons"
    )
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile: slow to start, faster on GPUs"
    )
    parser.add_argument(
        "--decoder", choices=("cpu", "nvdec"), default="cpu", help="nvdec: a GPU's, if it works"
    )
    add_limits(parser)
    options = parser.parse_args(argv)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    shard = options.manifest and options.settings and options.index
    if sum(map(bool, (shard, options.videos, options.csv))) != 1:
        raise ValueError(
            "give --manifest, --settings and --index, or --videos, or --csv; --help says more"
        )
    lowest = {"batch": 1, "workers": 0, "threads": 1, "videos_per_shard": 1, "sample_rate": 0.001}
    for name, low in lowest.items():
        value = getattr(options, name)
        if value != AUTO and value < low:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, must be at least {low}")
    if not options.workers:
        logger.warning(
            "--workers 0 decodes in this process, where nothing can end a video that hangs: its"
            " time budget (--video-timeout-seconds) is looked at between windows only; 1 or more"
            " keep it"
        )
