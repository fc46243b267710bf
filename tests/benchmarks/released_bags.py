"""A results folder of the sizes that HowTo100M and the released text module have.

Features of 1,024 numbers a second; captions of 4 to 20 words, drawn by Zipf's law (1.2) from
66,250; a clip of 4 seconds and a bag of 8 captions at each second; 100 seconds a video.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from pipeline.formats.bags import TRAIN, Bags, write_bags
from pipeline.formats.files import sha256_of_file, write_json
from pipeline.formats.names import shard_name
from pipeline.formats.plan import PlannedVideo, write_planned_videos
from pipeline.formats.shard import EncodedVideo, VideoFacts, read_index
from pipeline.formats.shard_writer import write_shard
from pipeline.formats.vocabulary import write_vocabulary
from tests.synthetic_bags import RECIPE, Results, train_settings
from trainer.settings import TrainSettings

NUM_WORDS, MAX_WORDS, BAG, CLIP, SECONDS = 66_250, 20, 8, 4, 100
RELEASED = replace(RECIPE, feature_dim=1024)


def released_settings(**changes: object) -> TrainSettings:
    """Towers of the released sizes at a global batch of 256, word vectors frozen."""
    sizes = {"embedding_dim": 512, "word_dim": 300, "text_hidden": 2048, "freeze_words": True}
    return train_settings(**({"global_batch": 256, "epochs": 100} | sizes | changes))


def make_released(root: Path, *, videos_of_shards: tuple[int, ...], **changes: object) -> Results:
    """Write plan, shards, vocabulary, bags and settings; nothing in them can be learned."""
    random = np.random.default_rng(0)
    write_vocabulary(root / "vocabulary.txt", [f"word{n}" for n in range(1, NUM_WORDS + 1)])
    write_json(root / "settings/train.json", asdict(released_settings(**changes)))
    weights = 1 / np.arange(1, NUM_WORDS + 1) ** 1.2
    for shard, num_videos in enumerate(videos_of_shards):
        name = shard_name(shard)
        ids = [f"v{shard}-{row}" for row in range(num_videos)]
        planned = [PlannedVideo(i, f"{i}.mp4", "train", 1, 1) for i in ids]
        write_planned_videos(root / f"plan/{name}.tsv", planned)
        tar, index = root / f"shards/{name}.tar", root / f"shards/{name}.parquet"
        write_shard(tar, index, (_video(i, random) for i in ids), RELEASED, provenance={})
        rows = read_index(index)
        metadata = {
            "shard": name, "recipe": RELEASED.to_dict(), "recipe_identity": RELEASED.identity,
            "vocabulary_sha256": sha256_of_file(root / "vocabulary.txt"),
            "vocabulary_size": NUM_WORDS, "max_caption_words": MAX_WORDS,
            "tar_bytes": rows.tar_bytes, "tar_sha256": rows.tar_sha256,
        }  # fmt: skip
        ids_ML = random.choice(
            NUM_WORDS, (num_videos * SECONDS, MAX_WORDS), p=weights / weights.sum()
        )
        write_bags(root / f"bags/{name}.npz", _bags(ids, 1 + ids_ML, rows.rows, metadata, random))
    return Results(root)


def _video(video_id: str, random: np.random.Generator) -> EncodedVideo:
    facts = VideoFacts(
        video_id=video_id, status="encoded", reason="", error_message="", num_frames=4 * SECONDS,
        decoded_seconds=SECONDS, declared_seconds=SECONDS, truncated=False, bad_packets=0,
        size_bytes=1, mtime_ns=1,
    )  # fmt: skip
    features_TF = random.standard_normal((SECONDS, RELEASED.feature_dim), np.float32)
    return EncodedVideo(facts=facts, features=features_TF.astype(np.float16))


def _bags(ids: list[str], ids_ML: np.ndarray, rows: list, metadata: dict, random) -> Bags:
    """One caption and one clip a second; a bag holds the nearest captions of its video."""
    video_M = np.repeat(np.arange(len(ids)), SECONDS)
    second_M = np.tile(np.arange(SECONDS), len(ids))
    lens_M = random.integers(4, MAX_WORDS + 1, size=len(second_M))
    ids_ML[np.arange(MAX_WORDS) >= lens_M[:, None]] = 0
    first_M = np.clip(second_M - BAG // 2, 0, SECONDS - BAG)
    nearest_MA = (video_M * SECONDS + first_M)[:, None] + np.arange(BAG)
    spans = {
        f"{owner}_{edge}": (second_M + seconds).astype("<f8")
        for owner, length in (("cap", 1), ("clip", CLIP))
        for edge, seconds in (("start", 0), ("stop", length))
    }
    return Bags(
        vid_paths=np.array([i.encode() for i in ids]),
        feature_offset=np.array([row.offset for row in rows], "<i8"),
        feature_count=np.array([row.num_vectors for row in rows], "<i4"),
        video_split=np.full(len(ids), TRAIN, "|i1"),
        cap_ids=ids_ML.astype("<i4"),
        cap_lens=lens_M.astype("<i4"),
        cap_video=video_M.astype("<i4"),
        cap_hash=np.arange(len(second_M), dtype="<i8"),
        clip_video=video_M.astype("<i4"),
        clip_feature_start=second_M.astype("<i4"),
        clip_feature_count=np.minimum(CLIP, SECONDS - second_M).astype("<i4"),
        bag_idx=nearest_MA.astype("<i4"),
        metadata=metadata,
        **spans,
    )
