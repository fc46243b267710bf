"""A small random results folder that training can read: plan, bags, shards, vocabulary, settings.

Features and captions share a hidden topic for each clip, so that there is something to learn.
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from pipeline.formats.bags import TRAIN, VAL, Bags, read_bags, write_bags
from pipeline.formats.files import sha256_of_file, write_json
from pipeline.formats.names import sample_key, shard_name
from pipeline.formats.plan import PlannedVideo, write_planned_videos
from pipeline.formats.shard import EncodedVideo, VideoFacts, read_index
from pipeline.formats.shard_writer import write_shard
from pipeline.formats.vocabulary import write_vocabulary
from tests.examples import recipe
from trainer.bag_index import files_of_plan, open_index
from trainer.data import StepData
from trainer.model import TwoTowers, build_model, save_model
from trainer.order import schedule
from trainer.settings import TrainSettings

FEATURE_DIM = 12
NUM_WORDS = 40
BAG_SIZE = 3
CAPTION_WORDS = 5
RECIPE = recipe(feature_dim=FEATURE_DIM)


@dataclass(frozen=True, slots=True)
class Results:
    """Paths of a results folder."""

    root: Path

    def train_arguments(self, **changes: object) -> list[str]:
        """Command line of trainer.train on this folder, with flags changed by name."""
        flags = {
            "settings": self.root / "settings/train.json",
            "plan": self.root / "plan",
            "bags": self.root / "bags",
            "shards": self.root / "shards",
            "vocabulary": self.root / "vocabulary.txt",
            "state": self.root / "train",
            "output": self.root / "train/model.pt",
            "metrics": self.root / "train/metrics.jsonl",
            "backend": "gloo",
            "workers": 0,
            "save_every": 4,
            "keep_checkpoints": 3,
            "log_every": 1,
            "validate_every": 5,
            "timeout_seconds": 60,
        } | changes
        pairs = ([f"--{name.replace('_', '-')}", str(value)] for name, value in flags.items())
        return [text for pair in pairs for text in pair]


def train_settings(**changes: object) -> TrainSettings:
    """Small settings, changed by name."""
    values = {
        "seed": 3,
        "epochs": 4,
        "max_steps": None,
        "global_batch": 12,
        "clips_per_video": 2,
        "shuffle_shards": 2,
        "lr": 0.01,
        "lr_scaling": "none",
        "lr_base_batch": 256,
        "warmup_samples": 24,
        "weight_decay": 0.05,
        "grad_clip": 5.0,
        "precision": "fp32",
        "fp16_init_scale": 65536.0,
        "fp16_growth_interval": 2000,
        "comm_hook": "none",
        "plain_accumulation": 1,
        "embedding_dim": 8,
        "word_dim": 6,
        "text_hidden": 16,
        "norm": "none",
        "padding_in_max": False,
        "word_vectors": None,
        "word_list": None,
        "freeze_words": False,
        "video_pool": "mean",
        "video_head": "projection",
        "normalize": True,
        "temperature": 0.1,
        "learn_temperature": True,
        "symmetric": True,
        "positive_weight": 1,
        "exclusion": "overlap",
        "margin_seconds": 1.0,
        "exclude_same_text": True,
        "bank_clips": 0,
        "bank_captions": 0,
        "bank_draw": "all",
        "bank_drawn": 1024,
        "bank_warmup_steps": 0,
        "bank_momentum": 0.0,
        "min_clips": 1,
        "init_from": None,
    }
    return TrainSettings(**(values | changes))


def make_results(root: Path, *, videos_of_shards: tuple[int, ...] = (7, 1, 6)) -> Results:
    """Write a results folder whose every fifth video is in the validation split."""
    random = np.random.default_rng(11)
    words = [f"word{number}" for number in range(1, NUM_WORDS + 1)]
    write_vocabulary(root / "vocabulary.txt", words)
    write_json(root / "settings/train.json", asdict(train_settings()))
    number = 0
    for shard, num_videos in enumerate(videos_of_shards):
        ids = [f"video {number + row}" for row in range(num_videos)]
        splits = ["val" if (number + row) % 5 == 4 else "train" for row in range(num_videos)]
        number += num_videos
        _write_shard(root, shard_name(shard), ids, splits, random)
    return Results(root)


def _write_shard(
    root: Path, name: str, ids: list[str], splits: list[str], random: np.random.Generator
) -> None:
    planned = [PlannedVideo(i, f"{i}.mp4", s, 1, 1) for i, s in zip(ids, splits, strict=True)]
    write_planned_videos(root / f"plan/{name}.tsv", planned)
    seconds = random.integers(4, 9, size=len(ids))
    topics = [random.integers(0, NUM_WORDS // 4, size=count) for count in seconds]
    videos = [_encoded(i, topic, random) for i, topic in zip(ids, topics, strict=True)]
    tar, index = root / f"shards/{name}.tar", root / f"shards/{name}.parquet"
    write_shard(tar, index, videos, RECIPE, provenance={})
    rows = read_index(index)
    metadata = {
        "shard": name,
        "recipe": RECIPE.to_dict(),
        "recipe_identity": RECIPE.identity,
        "vocabulary_sha256": sha256_of_file(root / "vocabulary.txt"),
        "vocabulary_size": NUM_WORDS,
        "max_caption_words": CAPTION_WORDS,
        "tar_bytes": rows.tar_bytes,
        "tar_sha256": rows.tar_sha256,
    }
    write_bags(root / f"bags/{name}.npz", _bags(ids, splits, topics, rows.rows, metadata, random))


def _encoded(video_id: str, topic_T: np.ndarray, random: np.random.Generator) -> EncodedVideo:
    """One feature row a second, told by the topic of that second."""
    means = np.random.default_rng(5).normal(size=(NUM_WORDS // 4, FEATURE_DIM))
    features_TF = means[topic_T] + 0.3 * random.normal(size=(len(topic_T), FEATURE_DIM))
    seconds = len(topic_T)
    facts = VideoFacts(
        video_id=video_id, status="encoded", reason="", error_message="", num_frames=4 * seconds,
        decoded_seconds=seconds, declared_seconds=seconds, truncated=False, bad_packets=0,
        size_bytes=1, mtime_ns=1,
    )  # fmt: skip
    return EncodedVideo(facts=facts, features=features_TF.astype(np.float16))


def _bags(ids, splits, topics, rows, metadata, random) -> Bags:
    """One caption and one clip a second; a bag holds the captions of up to three seconds."""
    lengths = np.array([len(topic_T) for topic_T in topics])
    video_M = np.repeat(np.arange(len(ids)), lengths)
    second_M = np.concatenate([np.arange(count) for count in lengths])
    topic_M = np.concatenate(topics)
    lens_M = random.integers(1, CAPTION_WORDS + 1, size=len(topic_M))
    ids_ML = 1 + 4 * topic_M[:, None] + random.integers(0, 4, size=(len(topic_M), CAPTION_WORDS))
    ids_ML[np.arange(CAPTION_WORDS) >= lens_M[:, None]] = 0
    near_MA = np.arange(len(topic_M))[:, None] + np.array([0, -1, 1])
    inside_MA = (second_M[:, None] + np.array([0, -1, 1]) >= 0) & (
        second_M[:, None] + np.array([0, -1, 1]) < lengths[video_M][:, None]
    )
    return Bags(
        vid_paths=np.array([sample_key(i).encode() for i in ids]),
        feature_offset=np.array([row.offset for row in rows], "<i8"),
        feature_count=np.array([row.num_vectors for row in rows], "<i4"),
        video_split=np.array([VAL if split == "val" else TRAIN for split in splits], "|i1"),
        cap_ids=ids_ML.astype("<i4"),
        cap_lens=lens_M.astype("<i4"),
        cap_video=video_M.astype("<i4"),
        cap_start=second_M.astype("<f8"),
        cap_stop=second_M + 1.0,
        cap_hash=np.array([hash(tuple(row)) for row in ids_ML.tolist()], "<i8"),
        clip_video=video_M.astype("<i4"),
        clip_start=second_M.astype("<f8"),
        clip_stop=second_M + 1.0,
        clip_feature_start=second_M.astype("<i4"),
        clip_feature_count=np.minimum(2, lengths[video_M] - second_M).astype("<i4"),
        bag_idx=np.where(inside_MA, near_MA, -1).astype("<i4"),
        metadata=metadata,
    )


def run_folder(results: Results) -> Path:
    """The own folder of the only run."""
    return next((results.root / "train").glob("state-*"))


def write_settings(results: Results, **changes) -> None:
    """Write settings/train.json anew: `train_settings`, changed by name."""
    write_json(results.root / "settings/train.json", asdict(train_settings(**changes)))


def files_of(results: Results) -> list:
    root = results.root
    return files_of_plan(root / "plan", root / "bags", root / "shards")


def step_data(results: Results, rank: int = 0, size: int = 1, **changes) -> StepData:
    settings = train_settings(**changes)
    files = files_of(results)
    num_videos = sum(len(videos) for videos in open_index(files).videos(TRAIN))
    plan = schedule(num_videos, settings.visits_per_step, settings.epochs, settings.max_steps)
    return StepData(files, settings, plan, rank=rank, size=size)


def rewrite(path, **changes):
    bags = read_bags(path)
    arrays = {field.name: getattr(bags, field.name) for field in dataclasses.fields(bags)}
    arrays = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in arrays.items()
    }
    write_bags(path, type(bags)(**(arrays | changes)))


def results_with(root: Path, **changes) -> Results:
    """`make_results` with settings changed by name."""
    results = make_results(root)
    write_settings(results, **changes)
    return results


def saved_model(path: Path, **changes) -> TwoTowers:
    """A model.pt and the model in it."""
    model = build_model(train_settings(**changes), feature_dim=FEATURE_DIM, num_words=3)
    save_model(
        path, model, vocabulary=["a", "b", "c"], recipe=RECIPE.to_dict(), step=7,
        max_caption_words=5,
    )  # fmt: skip
    return model


def random_ids(num_words: int = 20, num_captions: int = 9, length: int = 6) -> torch.Tensor:
    """Captions of 1 to `length` words, some words twice."""
    random = np.random.default_rng(2)
    ids = random.integers(1, num_words + 1, size=(num_captions, length))
    ids[:, 1] = ids[:, 0]
    ids[np.arange(length) >= random.integers(1, length + 1, num_captions)[:, None]] = 0
    return torch.from_numpy(ids)
