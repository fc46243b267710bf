"""Encode the accepted videos of one shard into features, or those of a table without a workflow.

Reads   the shard's manifest, the videos, the encoder's weights, and its own earlier features
Writes  a WebDataset tar of float16 features, and the index that says where each video's lie
Run     python -m pipeline.encode --manifest results/manifest/00000.parquet
        --settings results/settings/encode.json --output results/shards/00000.tar
        --index results/shards/00000.parquet
   or   python -m pipeline.encode --videos videos.csv --video-root DIR --output DIR --encoder s3d
        --sample-rate 0.5 --batch 8 --workers 4, or the same with --csv captions.csv
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.cli import run
from pipeline.encode_flags import limits_of, parse


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


def main(argv: list[str] | None = None) -> None:
    """Encode one shard, or all videos of a table or of captions."""
    options = parse(argv)
    # Not at the top: each decoding process imports this module, and has no use for a network.
    from pipeline.encode_shard import encode_shard
    from pipeline.encode_table import encode_table
    from pipeline.encoders.machine import choose_device, keep_memory, use_threads
    from pipeline.reuse import Retry
    from pipeline.shard_encoder import EncodeRun

    keep_memory()
    use_threads(options.threads)
    how = EncodeRun(
        batch=options.batch,
        workers=options.workers,
        limits=limits_of(options),
        retry=Retry.parse(options.retry),
        decoder=options.decoder,
    )
    network = {"device": choose_device(options.device), "compiled": options.compile}
    with ended_by_sigterm():
        if options.videos or options.csv:
            encode_table(options, how, **network)
        else:
            outputs = (options.output, options.index)
            encode_shard(options.manifest, options.settings, outputs, how, **network)


if __name__ == "__main__":
    run(main)
