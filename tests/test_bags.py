"""The bags stage on a hand-made index, where every clip and bag can be worked out by eye."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from pipeline import bags as stage
from pipeline.bags import build_bags, split_of
from pipeline.formats.bags import TRAIN, VAL, read_bags
from pipeline.formats.captions import Caption, write_captions
from pipeline.formats.files import sha256_of_file, write_json
from pipeline.formats.plan import PlannedVideo, write_planned_videos
from pipeline.formats.recipe import Recipe, Sampling
from pipeline.formats.shard import EncodedVideo, ShardIndex, VideoFacts, read_index
from pipeline.formats.shard_writer import write_shard
from pipeline.formats.vocabulary import write_vocabulary
from pipeline.settings import BagsSettings
from tests.examples import recipe

RECIPE = recipe(
    feature_dim=4,
    sampling=Sampling(frame_rate=8, frames=8, stride_seconds=1, tail="repeat"),
)
WORDS = {"cut": 1, "the": 2, "onion": 3, "fry": 4}


def settings(**changes):
    values = {
        "anchor": "caption",
        "clip_seconds": 2.0,
        "grid_seconds": 2.0,
        "bag_window_seconds": 1.0,
        "bag_size": 3,
        "val_fraction": 0.1,
    }
    return BagsSettings(**(values | changes))


def facts(video_id, seconds, status="encoded"):
    return VideoFacts(
        video_id=video_id,
        status=status,
        reason="" if status == "encoded" else "damaged",
        error_message="",
        num_frames=round(seconds * 8),
        decoded_seconds=seconds,
        declared_seconds=seconds,
        truncated=False,
        bad_packets=0,
        size_bytes=1,
        mtime_ns=1,
    )


@pytest.fixture
def index(tmp_path):
    """Two encoded videos of 10 s and 3 s, and one that failed."""

    def video(video_id, seconds, status="encoded"):
        features = None
        if status == "encoded":
            rows = RECIPE.sampling.num_vectors(round(seconds * 8))
            features = np.arange(rows * 4, dtype=np.float16).reshape(rows, 4)
        return EncodedVideo(facts=facts(video_id, seconds, status), features=features)

    videos = [video("a.1", 10.0), video("broken", 5.0, "failed"), video("b", 3.0)]
    write_shard(tmp_path / "00000.tar", tmp_path / "00000.parquet", videos, RECIPE, {})
    return read_index(tmp_path / "00000.parquet")


def build(index, captions, *, splits=None, **changes):
    return build_bags(
        index, captions, splits or {}, WORDS, settings(**changes), max_caption_words=3
    )


def test_each_caption_makes_a_clip_with_its_neighbours_in_the_bag(index: ShardIndex):
    captions = [
        Caption("a.1", 1.0, 2.0, "Cut the onion"),
        Caption("a.1", 3.0, 4.0, "fry"),
        Caption("a.1", 8.0, 9.0, "the onion"),
        Caption("b", 0.0, 1.0, "cut"),
    ]
    bags = build(index, captions)
    assert bags.vid_paths.tolist() == [b"a%2E1", b"b"]
    assert bags.cap_ids.tolist() == [[1, 2, 3], [4, 0, 0], [2, 3, 0], [1, 0, 0]]
    assert bags.cap_lens.tolist() == [3, 1, 2, 1]
    assert bags.cap_video.tolist() == [0, 0, 0, 1]
    assert bags.clip_start.tolist() == [0.5, 2.5, 7.5, 0.0]
    assert bags.clip_stop.tolist() == [2.5, 4.5, 9.5, 2.0]
    # One vector a second, each seeing a second: middles at 0.5, 1.5, ... lie in [start, stop).
    assert bags.clip_feature_start.tolist() == [0, 2, 7, 0]
    assert bags.clip_feature_count.tolist() == [2, 2, 2, 2]
    assert bags.bag_idx.tolist() == [[0, 1, -1], [1, 0, -1], [2, -1, -1], [3, -1, -1]]
    assert bags.metadata["clips_by_bag_size"] == [0, 2, 2, 0]


def test_what_is_left_out_is_counted(index):
    captions = [
        Caption("a.1", 1.0, 2.0, "unknown words only"),
        Caption("a.1", 10.0, 11.0, "fry"),
        Caption("broken", 1.0, 2.0, "fry"),
        Caption("elsewhere", 1.0, 2.0, "fry"),
        Caption("b", 0.0, 1.0, "cut"),
    ]
    bags = build(index, captions)
    assert bags.metadata["counts"] == {
        "captions": 1,
        "captions_after_video_end": 1,
        "captions_of_videos_without_features": 2,
        "captions_without_known_word": 1,
        "clips": 1,
        "clips_without_caption": 0,
        "clips_without_feature": 0,
        "videos": 2,
        "videos_without_captions": 0,
        "words_of_captions": 5,
        "words_not_in_vocabulary": 3,
    }


@pytest.mark.parametrize(("scale", "said"), [(1, False), (1000, True)])
def test_captions_in_another_unit_are_said(index, scale, said, caplog):
    build(index, [Caption("a.1", start * scale, (start + 1) * scale, "fry") for start in (1, 2, 3)])
    assert ("look at captions.unit" in caplog.text) == said
    assert ("3 captions start after the end of their video, 0 do not" in caplog.text) == said


@pytest.mark.parametrize(("scale", "said"), [(1, False), (0.001, True)])
def test_seconds_taken_for_milliseconds_are_said(index, scale, said, caplog):
    build(index, [Caption("a.1", start * scale, (start + 1) * scale, "fry") for start in (1, 2, 3)])
    line = "all captions of 1 of 1 videos end within the first hundredth of their video"
    assert (line in caplog.text) == said


def test_grid_clips_without_a_caption_are_dropped_and_counted(index):
    bags = build(index, [Caption("a.1", 1.0, 2.0, "fry")], anchor="grid")
    assert bags.clip_start.tolist() == [0.0, 2.0]
    assert bags.metadata["counts"]["clips_without_caption"] == 3 + 2
    assert bags.metadata["counts"]["videos_without_captions"] == 1


def test_a_shard_without_captions_gives_an_empty_and_readable_file(index):
    bags = build(index, [])
    assert (bags.num_videos, bags.num_captions, bags.num_clips) == (2, 0, 0)


def test_clips_shorter_than_the_feature_stride_are_refused(index):
    with pytest.raises(ValueError, match=r"bags\.clip_seconds is 0\.5, below the 1"):
        build(index, [], clip_seconds=0.5)


def test_captions_with_equal_token_ids_share_their_hash(index):
    captions = [
        Caption("a.1", 1.0, 2.0, "cut, the onion!"),
        Caption("a.1", 3.0, 4.0, "the cut onion"),
        Caption("b", 0.0, 1.0, "CUT THE uh ONION"),
    ]
    hashes = build(index, captions).cap_hash
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_given_split_wins_and_the_hash_moves_no_video():
    assert split_of("a", "val", 0.0) == VAL
    assert split_of("a", "train", 0.99) == TRAIN
    ids = [f"video-{i}" for i in range(4000)]
    small = {i for i in ids if split_of(i, "", 0.1) == VAL}
    large = {i for i in ids if split_of(i, "", 0.2) == VAL}
    assert small < large
    assert len(small) == pytest.approx(400, abs=80)


def test_the_command_writes_digests_and_equal_bytes_twice(tmp_path, index):
    write_planned_videos(tmp_path / "00000.tsv", [PlannedVideo("b", "b.mp4", "val", 1, 1)])
    write_captions(tmp_path / "captions.parquet", [Caption("b", 0.0, 1.0, "cut")], {})
    write_vocabulary(tmp_path / "vocabulary.txt", list(WORDS))
    write_json(tmp_path / "bags.json", asdict(settings()))
    write_json(
        tmp_path / "vocabulary.json",
        {"max_words": 9, "min_count": 1, "max_caption_words": 3, "word_list": None},
    )
    bytes_written = []
    for _ in range(2):
        stage.main(
            ["--plan", str(tmp_path / "00000.tsv"), "--index", str(tmp_path / "00000.parquet")]
            + ["--captions", str(tmp_path / "captions.parquet")]
            + ["--vocabulary", str(tmp_path / "vocabulary.txt")]
            + ["--settings", str(tmp_path / "bags.json")]
            + ["--vocabulary-settings", str(tmp_path / "vocabulary.json")]
            + ["--output", str(tmp_path / "out/00000.npz")]
        )
        bytes_written.append((tmp_path / "out/00000.npz").read_bytes())
    assert bytes_written[0] == bytes_written[1]
    bags = read_bags(tmp_path / "out/00000.npz")
    assert bags.video_split.tolist() == [split_of("a.1", "", 0.1), VAL]
    assert bags.metadata["shard"] == "00000"
    assert bags.metadata["recipe_identity"] == RECIPE.identity
    assert Recipe.from_dict(bags.metadata["recipe"]) == RECIPE
    assert bags.metadata["vocabulary_sha256"] == sha256_of_file(tmp_path / "vocabulary.txt")
    assert bags.metadata["tar_sha256"] == sha256_of_file(tmp_path / "00000.tar")
    json.dumps(bags.metadata)
