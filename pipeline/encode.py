"""Encode the accepted videos of one shard into features.

Reads   the shard's manifest, the videos, the encoder's weights, and its own earlier features
Writes  a WebDataset tar of float16 features, and the index that says where each video's lie
Run     python -m pipeline.encode --manifest results/manifest/00000.parquet
        --settings results/settings/encode.json --output results/shards/00000.tar
        --index results/shards/00000.parquet
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.cli import run
from pipeline.decode_pool import USUAL_LIMITS, Limits


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the program as Ctrl-C does, so that no process or scratch file is left."""

    def leave(signum: int, frame: object) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


AUTO = "auto"


def batch_size(text: str) -> int | str:
    """A whole number, or `auto`."""
    return text if text == AUTO else int(text)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The flags of `decode_pool.Limits`."""
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


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.encode",
        description="One shard's manifest in, its features (tar) and their index (parquet) out.",
    )
    parser.add_argument("--manifest", type=Path, required=True, help="the shard's manifest")
    parser.add_argument("--settings", type=Path, required=True, help="the frozen encode section")
    parser.add_argument("--output", type=Path, required=True, help="the tar to write")
    parser.add_argument("--index", type=Path, required=True, help="the index to write beside it")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--batch", type=batch_size, default=8, help="windows in one batch, or auto: probed once"
    )
    parser.add_argument("--workers", type=int, default=1, help="decoding processes; 0: none")
    parser.add_argument("--threads", type=int, default=2, help="threads of the network on a CPU")
    parser.add_argument(
        "--retry", default="all", help="failed videos to try again: all, none, or reasons"
    )
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile: slow to start, faster on GPUs"
    )
    add_limits(parser)
    options = parser.parse_args(argv)
    for name, low in (("batch", 1), ("workers", 0), ("threads", 1)):
        value = getattr(options, name)
        if value != AUTO and value < low:
            raise ValueError(f"--{name} is {value}, must be at least {low}")
    return options


def main(argv: list[str] | None = None) -> None:
    """Encode one shard."""
    options = parse(argv)
    # Not at the top: each decoding process imports this module, and has no use for a network.
    from pipeline.encoders.machine import choose_device, keep_memory, use_threads
    from pipeline.reuse import Retry
    from pipeline.shard_encoder import encode_shard

    keep_memory()
    use_threads(options.threads)
    with ended_by_sigterm():
        encode_shard(
            options.manifest,
            options.settings,
            (options.output, options.index),
            device=choose_device(options.device),
            compiled=options.compile,
            batch=options.batch,
            workers=options.workers,
            limits=limits_of(options),
            retry=Retry.parse(options.retry),
        )


if __name__ == "__main__":
    run(main)
