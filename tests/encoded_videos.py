"""Encoded and failed videos of made-up features, with ids that are no file names."""

from __future__ import annotations

import numpy as np

from pipeline.formats.recipe import Sampling
from pipeline.formats.shard import (
    EncodedVideo,
    VideoFacts,
)
from tests.examples import recipe

RECIPE = recipe(
    feature_dim=6,
    sampling=Sampling(frame_rate=4, frames=8, stride_seconds=1, tail="zero"),
)
IDS = ["plain", "a.1", "a.2", "x/y z.mp4", "-dash", "ünï", "%41", "CASE", "case"]


def facts(video_id: str, *, num_frames: int = 20, **changes) -> VideoFacts:
    values = {
        "video_id": video_id,
        "status": "encoded",
        "reason": "",
        "error_message": "",
        "num_frames": num_frames,
        "decoded_seconds": num_frames / 4,
        "declared_seconds": 5.0,
        "truncated": False,
        "bad_packets": 0,
        "size_bytes": 100,
        "mtime_ns": 7,
        "packets": 12,
        "missing_fraction": 0.01,
    }
    return VideoFacts(**{**values, **changes})


def video(video_id: str, seed: int = 0, num_frames: int = 20) -> EncodedVideo:
    shape = (RECIPE.sampling.num_vectors(num_frames), RECIPE.feature_dim)
    numbers = np.random.default_rng(seed).normal(size=shape).astype(np.float16)
    return EncodedVideo(facts=facts(video_id, num_frames=num_frames), features=numbers)


def failed(video_id: str, status: str = "failed") -> EncodedVideo:
    found = facts(video_id, num_frames=0, status=status, reason="unreadable", error_message="no")
    return EncodedVideo(facts=found, features=None)


VIDEOS = [
    failed("first", "rejected"),
    *(video(name, seed, num_frames=1 + 7 * seed) for seed, name in enumerate(IDS)),
    failed("last"),
]
