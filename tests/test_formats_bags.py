"""The bag file: round trip, alignment, and refusal of everything a trainer must not index with."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest

from pipeline.formats.bags import ALIGNMENT, ARRAYS, Bags, read_bags, write_bags


def small_bags(num_videos=3, captions_each=4, clips_each=3) -> Bags:
    generator = np.random.default_rng(0)
    captions, clips = num_videos * captions_each, num_videos * clips_each
    clip_video = np.repeat(np.arange(num_videos, dtype=np.int32), clips_each)
    order = generator.permuted(np.tile(np.arange(captions_each), (clips, 1)), axis=1)
    bag_idx = (clip_video[:, None] * captions_each + order[:, :2]).astype(np.int32)
    bag_idx[::2, 1] = -1
    return Bags(
        vid_paths=np.array([f"v{i}".encode() for i in range(num_videos)], dtype="S2"),
        feature_offset=np.arange(num_videos, dtype=np.int64) * 1000,
        feature_count=np.full(num_videos, 10, dtype=np.int32),
        video_split=np.zeros(num_videos, dtype=np.int8),
        cap_ids=generator.integers(1, 9, (captions, 5), dtype=np.int32),
        cap_lens=np.full(captions, 5, dtype=np.int32),
        cap_video=np.repeat(np.arange(num_videos, dtype=np.int32), captions_each),
        cap_start=np.arange(captions, dtype=np.float64),
        cap_stop=np.arange(captions, dtype=np.float64) + 1,
        cap_hash=generator.integers(-(2**62), 2**62, captions),
        clip_video=clip_video,
        clip_start=np.arange(clips, dtype=np.float64),
        clip_stop=np.arange(clips, dtype=np.float64) + 2,
        clip_feature_start=np.full(clips, 8, dtype=np.int32),
        clip_feature_count=np.full(clips, 2, dtype=np.int32),
        bag_idx=bag_idx,
        metadata={"shard": "00000", "counts": {"clips": clips}},
    )


def test_round_trip_maps_equal_arrays_and_metadata(tmp_path):
    bags = small_bags()
    write_bags(tmp_path / "a.npz", bags)
    read = read_bags(tmp_path / "a.npz")
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(read, name), getattr(bags, name))
        assert not getattr(read, name).flags.owndata, name
        assert not getattr(read, name).flags.writeable
    assert read.metadata == bags.metadata


def test_numpy_opens_the_file_without_pickle(tmp_path):
    bags = small_bags()
    write_bags(tmp_path / "a.npz", bags)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {*ARRAYS, "metadata"}
        np.testing.assert_array_equal(archive["bag_idx"], bags.bag_idx)


def test_members_start_on_aligned_borders(tmp_path):
    write_bags(tmp_path / "a.npz", small_bags())
    for name in ARRAYS:
        array = getattr(read_bags(tmp_path / "a.npz"), name)  # the map starts on a page
        assert array.ctypes.data % ALIGNMENT == 0, name


def test_no_videos_no_captions_no_clips(tmp_path):
    write_bags(tmp_path / "a.npz", small_bags(num_videos=0))
    read = read_bags(tmp_path / "a.npz")
    assert (read.num_videos, read.num_captions, read.num_clips) == (0, 0, 0)
    assert read.bag_idx.shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"bag_idx": np.where(b.bag_idx == b.bag_idx.max(), 99, b.bag_idx)}, "bag_idx"),
        (lambda b: {"bag_idx": np.full_like(b.bag_idx, -1)}, "a bag is empty"),
        (lambda b: {"bag_idx": np.repeat(b.bag_idx[:, :1], 2, axis=1)}, "caption twice"),
        (lambda b: {"bag_idx": b.bag_idx[::-1]}, "caption of another video"),
        (lambda b: {"bag_idx": b.bag_idx.astype(np.int64)}, "bag_idx is int64"),
        (lambda b: {"cap_video": b.cap_video[::-1]}, "not sorted"),
        (lambda b: {"cap_lens": b.cap_lens * 0}, "cap_lens"),
        (lambda b: {"clip_video": b.clip_video + 7}, "clip_video"),
        (lambda b: {"clip_feature_count": b.clip_feature_count + 1}, "outside its video"),
        (lambda b: {"clip_feature_start": b.clip_feature_start - 9}, "outside its video"),
        (lambda b: {"cap_start": b.cap_start[1:]}, "cap_start has shape"),
        (lambda b: {"video_split": b.video_split + 2}, "video_split"),
    ],
)
def test_arrays_that_point_outside_are_refused(tmp_path, change, message):
    bags = small_bags()
    with pytest.raises(ValueError, match=message):
        write_bags(tmp_path / "a.npz", replace(bags, **change(bags)))
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_anywhere_is_refused_in_one_line(tmp_path):
    write_bags(tmp_path / "a.npz", small_bags())
    data = (tmp_path / "a.npz").read_bytes()
    for length in range(0, len(data), 97):
        (tmp_path / "cut.npz").write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"cut\.npz") as caught:
            read_bags(tmp_path / "cut.npz")
        assert "\n" not in str(caught.value)


def test_compressed_and_foreign_archives_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "compressed.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="compressed"):
        read_bags(tmp_path / "compressed.npz")
    np.savez(tmp_path / "foreign.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="not a bag file"):
        read_bags(tmp_path / "foreign.npz")


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path):
    write_bags(tmp_path / "a.npz", small_bags())
    data = (tmp_path / "a.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None
    for claim in (b"(99, 5), }", b"(-9, 5), }", b"(12, 5)(((", b"(12, 5), ["):
        (tmp_path / "b.npz").write_bytes(data.replace(b"(12, 5), }", claim, 1))
        with pytest.raises(ValueError, match=r"b\.npz") as caught:
            read_bags(tmp_path / "b.npz")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"(12, 5)", b"(-12,-5)", "no .npy header"),
        (b"(12, 5)", b"(10**9,5)", "no .npy header"),
        (b"(12, 5)", b"(99999, 5)", "cap_ids.npy does not fit the file"),
        (b"'<i4'", b"'|O4'", "no .npy header"),
        (b'"recipe"', b'"recipd"', "its metadata is damaged"),
    ],
)
def test_a_header_or_metadata_that_was_made_up_is_refused(tmp_path, before, after, message):
    path = tmp_path / "0.npz"
    write_bags(path, replace(small_bags(), metadata={"recipe": {}}))
    data = path.read_bytes()
    at = data.index(before)
    spaces = len(after) - len(before)
    assert data[at + len(before) :].find(b" " * spaces) >= 0
    rest = data[at + len(before) :].replace(b" " * spaces, b"", 1) if spaces else None
    path.write_bytes(data[:at] + after + (data[at + len(before) :] if rest is None else rest))
    with pytest.raises(ValueError, match=message):
        read_bags(path)
