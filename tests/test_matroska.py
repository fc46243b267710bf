"""Crops that only a container declares, and how far a Matroska file reaches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.matroska import container_crop, segment_end
from pipeline.pixels import Crop, Geometry
from pipeline.video_stream import best_stream, open_video
from tests.fuzzing import bounded_memory, damaged
from tests.marked_videos import remux, set_clean_aperture
from tests.video_oracles import assert_like_command_line, decode
from tests.videos import cut, quadrants, steady, write_video


def quartered(path):
    return write_video(path, steady(10, 10), rate=10, draw=lambda _: quadrants(160, 96))


@pytest.fixture(scope="module")
def cropped(tmp_path_factory):
    """160 × 96 pixels of which 120 × 80 are shown, from (36, 4) on."""
    path = quartered(tmp_path_factory.mktemp("cropped") / "clap.mp4")
    set_clean_aperture(path, 120, 80, 16, -4)
    return path


def crop_of(path) -> Crop:
    with open_video(path) as container:
        return container_crop(best_stream(container))


def test_mp4_and_matroska_tell_the_same_crop(tmp_path, cropped):
    assert crop_of(cropped) == Crop(left=36, top=4, right=4, bottom=12)
    assert crop_of(remux(cropped, tmp_path / "crop.mkv")) == crop_of(cropped)
    assert crop_of(quartered(tmp_path / "whole.mp4")) == Crop()


@pytest.mark.parametrize("name", ["clap.mp4", "crop.mkv"])
@pytest.mark.parametrize("size", [32, 56, 80])
def test_cropped_pictures_are_those_of_the_command_line(tmp_path, ffmpeg, cropped, name, size):
    path = cropped if name == cropped.name else remux(cropped, tmp_path / name)
    assert_like_command_line(ffmpeg, path, size=size)


@pytest.mark.parametrize("geometry", [Geometry(32), Geometry(32, 40), Geometry(32, (40, 60))])
def test_what_is_cut_off_is_not_seen(tmp_path, geometry):
    """The left half of the picture is red, and is cut off."""
    draw = np.full((64, 96, 3), (200, 0, 0), np.uint8)
    draw[:, 48:] = (0, 0, 200)
    path = write_video(tmp_path / "half.mp4", steady(5, 10), rate=10, draw=lambda _: draw)
    set_clean_aperture(path, 48, 64, 24, 0)
    (picture, *_), _ = decode(path, geometry=geometry)
    assert np.abs(picture[:, 4:].astype(int) - (0, 0, 200)).max() < 20


def test_a_codec_that_matroska_does_not_know_is_not_cropped(tmp_path):
    still = {"codec": "h263", "draw": lambda _: quadrants(176, 144)}
    path = write_video(tmp_path / "old.3gp", steady(5, 10), rate=10, **still)
    assert crop_of(path) == Crop()


def test_a_file_tells_where_it_should_end(tmp_path):
    path = quartered(tmp_path / "whole.mkv")
    size = path.stat().st_size
    assert segment_end(path) == size
    cut(path, 0.5)
    assert segment_end(path) == size
    assert segment_end(quartered(tmp_path / "other.mp4")) is None


WHOLES = [
    bytes.fromhex("1A45DFA3 84 42868101 18538067") + size
    for size in (b"\x84abcd", b"\x01" + b"\xff" * 7 + b"abcd", b"\x01" + bytes(6) + b"\x04abcd")
]


def test_an_unknown_size_is_none(tmp_path):
    found = []
    for whole in WHOLES:
        (tmp_path / "a.mkv").write_bytes(whole)
        found.append(segment_end(tmp_path / "a.mkv"))
    assert found == [len(WHOLES[0]), None, len(WHOLES[2])]


@given(data=damaged(WHOLES) | st.binary(max_size=99))
def test_any_bytes_have_an_end_or_none(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.mkv"
    path.write_bytes(data)
    with bounded_memory():
        end = segment_end(path)
    assert end is None or end >= 0
