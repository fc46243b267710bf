"""The finished videos of an unfinished shard: one file each, so that a killed job loses none.

A file holds a video's features and facts, tagged with the identity of the recipe. Its name is a
digest of the video id, because ids are of any length. The folder goes when its shard is written.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from pipeline.formats.arrays import read_npz
from pipeline.formats.files import digest_of, whole_file
from pipeline.formats.shard import EncodedVideo, VideoFacts

VERSION = "partial-1"


def partial_path(folder: Path, video_id: str) -> Path:
    """Where the finished video lies in its shard's folder."""
    return folder / f"{digest_of(video_id)[:32]}.npz"


def write_partial(folder: Path, video: EncodedVideo, recipe_identity: str) -> None:
    """Write an encoded video."""
    assert video.features is not None, "only encoded videos are kept"
    tag = {"version": VERSION, "recipe": recipe_identity, "facts": asdict(video.facts)}
    text = json.dumps(tag, sort_keys=True).encode("utf-8")
    with (
        whole_file(partial_path(folder, video.facts.video_id)) as scratch,
        open(scratch, "wb") as file,
    ):
        np.savez(file, tag=np.frombuffer(text, np.uint8), features=video.features)


def read_partial(folder: Path, video_id: str, recipe_identity: str) -> EncodedVideo | None:
    """Read a finished video; None if there is none, or one of another recipe or version.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        video, identity = read_any_partial(partial_path(folder, video_id))
    except FileNotFoundError:
        return None
    return video if identity == recipe_identity else None


def read_any_partial(path: Path) -> tuple[EncodedVideo, str]:
    """A finished video, and the identity of its recipe (empty: it is of another version).

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is damaged.
    """
    try:
        tag, features = read_npz(path, "tag", "features")
        told = json.loads(tag.tobytes())
        video = EncodedVideo(facts=VideoFacts(**told["facts"]), features=features)
        if features.ndim != 2:
            raise ValueError(f"features of the shape {features.shape}")
        return video, told["recipe"] if told["version"] == VERSION else ""
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
