"""Features of the videos of a table, or of the ids of captions, without a workflow.

They are probed, encoded and cut into shards.

Running it again encodes only what is new or changed, as in the workflow.
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import replace
from pathlib import Path

from pipeline.encode_shard import encode_rows
from pipeline.encoders.interface import load_encoder
from pipeline.formats.manifest import ManifestRow
from pipeline.formats.names import shard_name
from pipeline.formats.plan import PlannedVideo
from pipeline.formats.video_folder import find_videos_of_captions
from pipeline.formats.videos import VideoEntry, read_videos
from pipeline.inspection import inspect_all, summary
from pipeline.probe import find_ffprobe
from pipeline.settings import OUTPUTS, EncodeSettings, ManifestSettings
from pipeline.shard_encoder import EncodeRun

FRAMES = 16
"""Of one vector, spread over the time to the next: a rate of 0.5 is the preset half-hertz, 1 is
howto100m-1s."""
ANY_VIDEO = ManifestSettings(min_seconds=0.0, max_seconds=1e9, timeout_seconds=60.0, deny_list=None)

logger = logging.getLogger(__name__)


def encode_table(
    options: argparse.Namespace, run: EncodeRun, *, device: str, compiled: bool
) -> None:
    """Encode the videos that `options` names into the folder `options.output`.

    Raises:
        FileNotFoundError: there is no such table, or no ffprobe.
        ValueError: the table or an option makes no sense, or no id of the captions has a video.
    """
    entries = entries_of(options)
    settings = settings_of(options)
    if options.weights == "random":
        logger.warning("--weights is random: the features say nothing about the videos")
    encoder = load_encoder(settings, device, compiled=compiled)
    size = options.videos_per_shard
    for number, start in enumerate(range(0, len(entries), size)):
        rows = rows_of(entries[start : start + size], max(1, options.workers))
        name = shard_name(number)
        logger.info("shard %s: %s", name, summary(rows))
        outputs = (options.output / f"{name}.tar", options.output / f"{name}.parquet")
        encode_rows(rows, settings, encoder, outputs, run)
    warn_of_others(options.output, -(-len(entries) // size))


def warn_of_others(folder: Path, num_shards: int) -> None:
    """Name shards that the table does not fill any more: a reader of the folder would take them."""
    ours = set(map(shard_name, range(num_shards)))
    others = sorted(path.stem for path in folder.glob("[0-9]*.tar") if path.stem not in ours)
    if others:
        logger.warning(
            "%s also holds %s of a longer table or of other --videos-per-shard: remove what you do"
            " not want read (.tar and .parquet)", folder, ", ".join(others[:5]),
        )  # fmt: skip


def entries_of(options: argparse.Namespace) -> list[VideoEntry]:
    """The rows of `options.videos`, or one for each id of `options.csv`, with their full paths."""
    root = options.video_root
    if options.videos:
        rows = read_videos(options.videos)
        return [replace(row, path=str(root / row.path)) if row.path else row for row in rows]
    paths = find_videos_of_captions(str(options.csv), root)
    missing = [video_id for video_id, path in paths.items() if not os.path.exists(path)]
    if missing or not paths:
        said = f"{options.csv}: {len(missing)} of {len(paths)} ids have no video in {root}"
        said += f", as {', '.join(map(repr, missing[:3]))}" if missing else ""
        if len(missing) == len(paths):
            raise ValueError(f"{said}; a file is named after its video's id")
        logger.warning("%s", said)
    return [VideoEntry(video_id, path, "") for video_id, path in paths.items()]


def rows_of(entries: list[VideoEntry], workers: int) -> list[ManifestRow]:
    """What ffprobe says of the videos of a table."""
    planned = [
        PlannedVideo(
            video_id=entry.video_id,
            path=entry.path,
            split=entry.split,
            size_bytes=-1,
            mtime_ns=-1,
        )
        for entry in entries
    ]
    return inspect_all(planned, settings=ANY_VIDEO, ffprobe=find_ffprobe(), workers=workers)


def settings_of(options: argparse.Namespace) -> EncodeSettings:
    """The section `encode` that the flags stand for."""
    own = OUTPUTS.get(options.encoder)
    return EncodeSettings(
        encoder=options.encoder,
        weights=options.weights,
        weights_sha256=None,
        seed=0,
        space_to_depth=True,
        # The last of its own outputs: of S3D the embedding.
        output=options.features or (own[-1] if own else "features"),
        sampling={
            "frame_rate": FRAMES * options.sample_rate,
            "frames": FRAMES,
            "stride_seconds": 1 / options.sample_rate,
            "tail": "repeat",
        },
        frame_size=options.frame_size or (112 if options.encoder == "c3d" else 224),
        precision=options.precision,
        max_missing=0.5,
        max_bad_packets=0.2,
        feature_version=1,
    )
