"""Squares of NV12 planes against libswscale's of the same frames, as libav decoded them.

Measured with FFmpeg 8 on x86: 0.01 to 0.02 of 255 apart in the mean and at most 4 where a picture
is scaled to an even width, at most 1 at an odd width; 0.7 to 1.0 in the mean and at most 3 where it
keeps its size. Of 67 real videos two are further apart, at edges that overshoot: 8 and 11.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from pipeline.formats.manifest import VideoFault
from pipeline.nv12 import Look, SquareMaker, planes_of
from pipeline.painter import Painter, display_matrix
from pipeline.pixels import Geometry
from pipeline.swscale import WEIGHTS
from pipeline.video_stream import best_stream, open_video
from tests.gpu_frames import nv12_of
from tests.videos import set_display_matrix, steady, write_video

CPU = torch.device("cpu")
BT709, UNSPECIFIED, BT601 = 1, 2, 5
LIMITED, FULL = 1, 2


def colourful(height: int, width: int) -> np.ndarray:
    """Blocks of random colours on a slope: edges, saturated colours and all levels."""
    rough = np.random.default_rng(0).integers(0, 256, (-(-height // 8), -(-width // 8), 3))
    blocks = np.kron(rough, np.ones((8, 8, 1)))[:height, :width]
    y, x = np.mgrid[:height, :width]
    slope = np.stack([x * 255 / width, y * 255 / height, (x + y) % 256], axis=-1)
    return ((blocks + slope) / 2).astype(np.uint8)


def decoded(folder: Path, height: int, width: int, **options: object) -> av.VideoFrame:
    """The first frame of a video of that picture, as libav's own decoder gives it."""
    picture = colourful(height, width)
    path = write_video(folder / "picture.mp4", steady(2), draw=lambda _: picture, **options)
    return first_frame(path)


def first_frame(path: Path) -> av.VideoFrame:
    with open_video(path) as container:
        return next(container.decode(best_stream(container)))


def apart(frame: av.VideoFrame, geometry: Geometry) -> tuple[float, int]:
    """Mean and largest difference of both ways for a frame."""
    expected = Painter(geometry, Fraction(1, 25)).paint(frame, display_matrix(frame)).astype(int)
    look = Look(
        height=frame.height,
        width=frame.width,
        space=int(frame.colorspace),
        full_range=int(frame.color_range) == FULL,
        display_matrix=display_matrix(frame),
    )
    planes = [torch.from_numpy(plane) for plane in nv12_of(frame)]
    found = SquareMaker(geometry, CPU).square(*planes, look)
    assert (found.shape, found.dtype) == (expected.shape, np.uint8)
    difference = np.abs(found.astype(int) - expected)
    return float(difference.mean()), int(difference.max())


@pytest.mark.parametrize("geometry", [Geometry(112), Geometry(224), Geometry(112, 130)])
@pytest.mark.parametrize("shape", [(240, 320), (242, 426), (322, 242)])
def test_scaled_squares_are_those_of_the_cpu(tmp_path, shape, geometry):
    mean, most = apart(decoded(tmp_path, *shape), geometry)
    assert mean < 0.03
    assert most <= 4


@pytest.mark.parametrize("geometry", [Geometry(112, (128, 171)), Geometry(111), Geometry(97, 101)])
def test_odd_widths_are_scaled_and_converted_without_the_shortcuts(tmp_path, geometry):
    mean, most = apart(decoded(tmp_path, 240, 320), geometry)
    assert mean < 0.03
    assert most <= 1


@pytest.mark.parametrize("geometry", [Geometry(120), Geometry(112, (120, 160))])
def test_sizes_that_stay_repeat_colours_as_the_cpu_does(tmp_path, geometry):
    mean, most = apart(decoded(tmp_path, 120, 160), geometry)
    assert mean < 1.2
    assert most <= 3


def test_high_definition_shrinks_with_a_wide_kernel(tmp_path):
    frame = decoded(tmp_path, 1080, 1920)
    mean, most = apart(frame, Geometry(224))
    assert mean < 0.03
    assert most <= 4


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("space", WEIGHTS)
def test_matrices_and_ranges_are_those_of_the_cpu(tmp_path, space, full_range):
    frame = decoded(tmp_path, 120, 160)
    frame.colorspace, frame.color_range = space, FULL if full_range else LIMITED
    mean, most = apart(frame, Geometry(64))
    assert mean < 0.03
    assert most <= 4


def test_the_matrix_and_the_range_make_a_difference(tmp_path):
    """So that the test above could fail."""
    frame = decoded(tmp_path, 120, 160)
    planes = [torch.from_numpy(plane) for plane in nv12_of(frame)]
    looks = [Look(120, 160, *kind, None) for kind in ((1, False), (5, False), (1, True))]
    squares = [SquareMaker(Geometry(64), CPU).square(*planes, look).astype(int) for look in looks]
    assert min(np.abs(squares[0] - other).mean() for other in squares[1:]) > 2


@pytest.mark.parametrize(
    ("pixels", "options", "said"),
    [
        ("yuvj420p", {}, (UNSPECIFIED, FULL)),
        ("yuv420p", {"colorspace": "bt709"}, (BT709, LIMITED)),
        ("yuv420p", {"colorspace": "bt470bg"}, (BT601, LIMITED)),
    ],
)
def test_what_a_file_says_of_its_colours_is_heeded(tmp_path, pixels, options, said):
    frame = decoded(tmp_path, 120, 160, pixels=pixels, codec_options=options)
    assert (int(frame.colorspace), int(frame.color_range)) == said
    mean, most = apart(frame, Geometry(64))
    assert mean < 0.03
    assert most <= 4


@pytest.mark.parametrize(
    "matrix",
    [
        (0, 1, -1, 0),
        (0, -1, 1, 0),
        (-1, 0, 0, -1),
        (1, 0, 0, -1),
        (-1, 0, 0, 1),
        (0, 1, 1, 0),
        (0, -1, -1, 0),
    ],
)
def test_turned_and_mirrored_videos_are_those_of_the_cpu(tmp_path, matrix):
    decoded(tmp_path, 120, 162)
    set_display_matrix(tmp_path / "picture.mp4", matrix)
    frame = first_frame(tmp_path / "picture.mp4")
    assert struct.unpack("=2i", display_matrix(frame)[:8]) == (
        matrix[0] << 16,
        matrix[1] << 16,
    )
    for geometry in (Geometry(64), Geometry(64, (72, 97)), Geometry(64, 80)):
        mean, most = apart(frame, geometry)
        assert mean < 0.03
        assert most <= 4


def test_pixels_that_are_not_square_are_taken_as_if_they_were(tmp_path):
    plain = decoded(tmp_path, 120, 160)
    wide = tmp_path / "wide.mkv"
    with av.open(str(wide), "w") as output:
        stream = output.add_stream("libx264", rate=25, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(16, 11)
        frame = av.VideoFrame.from_ndarray(colourful(120, 160), format="rgb24")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    with open_video(wide) as container:
        assert best_stream(container).sample_aspect_ratio == Fraction(16, 11)
    assert max(apart(first_frame(wide), Geometry(64))) <= 4
    assert (plain.width, plain.height) == (160, 120)


def test_planes_are_shared_and_not_copied():
    frame = av.VideoFrame(100, 60, "nv12")
    for plane, value in zip(frame.planes, (7, 9), strict=True):
        plane.update(bytes([value]) * plane.buffer_size)
    assert frame.planes[0].line_size > 100, "lines are padded"
    luma, chroma = planes_of(frame.planes, CPU)
    assert (tuple(luma.shape), tuple(chroma.shape)) == ((60, 100), (30, 50, 2))
    assert (int(luma.min()), int(chroma.max())) == (7, 9)
    assert luma.data_ptr() == frame.planes[0].buffer_ptr


def test_a_look_that_changes_gets_steps_of_its_own():
    maker = SquareMaker(Geometry(16), CPU)
    grey = [torch.full((32, 48), 126, dtype=torch.uint8), torch.full((16, 24, 2), 128).byte()]
    limited = maker.square(*grey, Look(32, 48, BT601, False, None))
    full = maker.square(*grey, Look(32, 48, BT601, True, None))
    assert np.unique(full).tolist() == [126]
    assert np.unique(limited).tolist() == [126]  # 128.1, less the 1.8 that the tables take


@pytest.mark.real
def test_real_pictures_are_those_of_the_cpu(real_data):
    """The first frame of each real video of a kind that NVDEC gives."""
    means = []
    for path in sorted(real_data.rglob("*.mp4")):
        try:
            frame = first_frame(path)
        except (av.FFmpegError, VideoFault, StopIteration):
            continue
        if frame.format.name != "yuv420p" or frame.width % 2 or frame.height % 2:
            continue
        mean, most = apart(frame, Geometry(224))
        assert most <= 12, path
        means.append(mean)
    assert len(means) > 10
    assert np.mean(means) < 0.05
