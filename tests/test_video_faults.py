"""One small file for every kind of fault that real collections hold, and what becomes of it.

Wherever the ffmpeg command line has an opinion, its frames are the oracle: as many, at the same
times, within ±2 of each 8-bit value. `v`: tests/test_video.py, `s`: tests/test_video_stream.py,
`p`: tests/test_probe.py, `d`: tests/test_decode_pool.py; the others stand here. What containers say
of their pictures: tests/test_painter.py, test_matroska.py; holes: test_packets.py, test_holes.py.

    more frames promised than there are test_an_edit_list_...; d test_a_killed_process_...
    log level and threads deadlock      s test_the_log_level_...; s test_rotten_files_...
    memory grows over many files        test_many_files_leave_no_memory_behind
    no index, nothing in it, a web page s test_faults_have_names; p test_broken_files_...
    cut in the middle                   s test_truncation_is_measured
    bad packets                         test_bit_rot_...; s test_bad_packets_lose_only_...
    variable frame rate                 test_variable_frame_rates_...; v test_variable_...
    start that is not zero              test_starts_...; v test_a_late_start_...
    timestamps missing                  test_frames_before_...; s test_a_file_without_...
    no duration in the header           test_a_streamed_webm_...
    longer sound than picture           s test_a_longer_sound_...; p test_the_length_is_...
    the last frame                      test_no_frame_is_lost_at_the_end
    rotation                            v test_turned_videos_...; v test_a_portrait_phone_...
    cover pictures                      test_a_cover_...; s and p test_*_have_names
    several video streams               test_the_default_stream_of_two_...
    sizes or clocks change on the way   v test_sizes_that_change_...; s test_a_second_...
    odd, tiny and narrow sizes          v test_pixels_are_those_...; v test_tiny_pictures_grow
    10 bit, HDR, full range             test_deep_and_wide_colours_...; v test_pixels_are_...
    alpha channel                       v test_pixels_are_those_...
    interlaced                          test_interlaced_pictures_...
    wide or open groups of pictures     test_groups_of_pictures_...
    shorter than a window               test_short_videos_have_one_vector; v test_a_single_...
    long                                test_memory_does_not_grow_with_the_length
    no ffprobe, a folder, no permission p test_no_ffprobe_...; p test_broken_files_have_names
    names that look like options        s and p test_odd_names_are_names
    a named pipe                        test_a_named_pipe_never_hangs
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline.decode_pool import decode_all
from pipeline.decoding import Failed, Job
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import PRESETS, Sampling
from pipeline.pixels import Geometry
from pipeline.probe import probe_video
from pipeline.video import VideoReader
from tests.video_oracles import assert_like_command_line, decode, nearest, numbers
from tests.videos import command_line, cut, number_of, numbered, rot, steady, write_video

ROOT = Path(__file__).resolve().parents[1]
HDR = "transfer=smpte2084:colorprim=bt2020:colormatrix=bt2020nc"
LARGEST = "crop='min(iw,ih)':'min(iw,ih)',scale=32:32"


def convert(ffmpeg: str, *words: str | Path) -> Path:
    """Let the command line make a file, the last of `words`; skip where it cannot."""
    command = [ffmpeg, "-v", "error", "-y", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"this ffmpeg cannot make the file: {done.stderr.decode()[-200:]}")
    return Path(words[-1])


def child(code: str, *words: str | Path) -> list[int]:
    """Run `code` in a Python process of its own; the numbers that it writes."""
    command = [sys.executable, "-c", PEAK + code, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


PEAK = """
import sys
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry
from pipeline.video import VideoReader
def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))
def decode(path):
    grid = Sampling(frame_rate=10, frames=16, stride_seconds=1.6, tail="repeat")
    return sum(1 for _ in VideoReader(path, sampling=grid, geometry=Geometry(112)).windows())
"""
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


# Times


def test_an_edit_list_that_promises_more_frames_than_decode(tmp_path, ffmpeg):
    groups = {"g": "250", "bf": "3"}
    whole = write_video(tmp_path / "whole.mp4", steady(200), codec_options=groups)
    times = ["-ss", "3.3", "-i", whole, "-t", "3", "-c", "copy"]
    path = convert(ffmpeg, *times, tmp_path / "edit.mp4")
    with av.open(str(path)) as container:
        promised = container.streams.video[0].frames
    found, report = decode(path, 25)
    assert promised > report.num_frames + 10
    assert len(found) == report.num_frames
    assert_like_command_line(ffmpeg, path)


def test_frames_before_the_first_timestamp_are_left_out(tmp_path, ffmpeg):
    groups = {"g": "250", "bf": "3"}
    whole = write_video(tmp_path / "whole.mp4", steady(200), codec_options=groups)
    times = ["-ss", "3.3", "-i", whole, "-t", "3", "-c", "copy", "-avoid_negative_ts", "disabled"]
    path = convert(ffmpeg, *times, tmp_path / "negative.mkv")
    with av.open(str(path)) as container:
        stamps = [frame.pts for frame in container.decode(video=0)]
    assert stamps.count(None) > 50, "the frames from the key frame to the cut"
    # No oracle: the command line lets the frames without a time push the others out of theirs.
    found, report = decode(path)
    assert not report.synthetic_pts
    assert [number_of(picture) for picture in found] == [
        83 + shown for shown in nearest(steady(77, start=0.02), 10, 3.14)
    ]


def test_variable_frame_rates_are_those_of_the_command_line(tmp_path, ffmpeg):
    dense = [t for t in steady(100) if t < 1]
    sparse = [t for k, t in enumerate(steady(100)) if t > 2 and k % 3 == 0]
    path = write_video(tmp_path / "vfr.mp4", dense + sparse)
    assert numbers(path, 25)[: len(dense) + 20] == list(range(len(dense))) + [len(dense) - 1] * 20
    for rate in (8, 10, 30):
        assert_like_command_line(ffmpeg, path, rate)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("late.mp4", {"audio_seconds": 5}),
        ("late.mkv", {"audio_seconds": 5}),
        ("late.ts", {}),
        ("alone.mkv", {}),
        ("b.avi", {"codec": "mpeg4", "ticks": 25, "codec_options": {"bf": "2"}}),
    ],
)
def test_starts_are_those_of_the_command_line(tmp_path, ffmpeg, name, options):
    start = 0 if name.endswith(".avi") else 1.48
    path = write_video(tmp_path / name, steady(60, start=start), **options)
    assert_like_command_line(ffmpeg, path)
    assert_like_command_line(ffmpeg, path, 16)


def test_a_streamed_webm_without_a_duration(tmp_path, ffmpeg):
    class Pipe:
        """A file that can be written to the end alone."""

        def __init__(self, file):
            self.write = file.write

    path = tmp_path / "streamed.webm"
    with open(path, "wb") as file, av.open(Pipe(file), "w", format="webm") as output:
        stream = output.add_stream("libvpx", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(50):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(numbered(number), "rgb24")))
        output.mux(stream.encode(None))
    with av.open(str(path)) as container:
        assert not container.duration
    found, report = decode(path)
    assert report.num_frames == len(found) == pytest.approx(20, abs=1)
    assert report.missing_fraction == 0
    assert_like_command_line(ffmpeg, path)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.webm"])
def test_no_frame_is_lost_at_the_end(tmp_path, ffmpeg, name):
    codec = "libvpx-vp9" if name.endswith("webm") else "libx264"
    options = {} if name.endswith("webm") else {"bf": "3", "g": "50"}
    path = write_video(tmp_path / name, steady(40), codec=codec, codec_options=options)
    assert numbers(path, 25) == list(range(40))
    assert_like_command_line(ffmpeg, path, 25)


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "250", "bf": "3"}),
        ("libx264", {"g": "30", "x264-params": "open-gop=1:bframes=3:keyint=30"}),
        ("libx265", {"g": "3", "x265-params": "log-level=none"}),
    ],
)
def test_groups_of_pictures_do_not_matter(tmp_path, ffmpeg, codec, options):
    path = write_video(tmp_path / "groups.mp4", steady(161), codec=codec, codec_options=options)
    assert numbers(path) == nearest(steady(161), 10, 161 / 25)
    assert_like_command_line(ffmpeg, path)


# Streams


def test_a_cover_before_the_video_is_not_the_video(tmp_path, ffmpeg, ffprobe, plain_video):
    picture = np.full((64, 64, 3), 200, np.uint8)
    path = tmp_path / "covered.mp4"
    with av.open(str(path), "w") as output, av.open(str(plain_video)) as source:
        cover = output.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        video = output.add_stream_from_template(source.streams.video[0])
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuvj420p")
        frame.pts = 0
        for packet in [*cover.encode(frame), *cover.encode(None)]:
            output.mux(packet)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = video
                output.mux(packet)
    probe = probe_video(path, ffprobe=ffprobe, timeout_seconds=30)
    assert (probe.width, probe.height) == (96, 64)
    assert numbers(path) == numbers(plain_video)


def test_the_default_stream_of_two_is_read_as_the_command_line_does(tmp_path, ffmpeg, ffprobe):
    first = write_video(tmp_path / "first.mp4", steady(50))
    other = write_video(tmp_path / "other.mp4", steady(50), draw=lambda k: numbered(k + 1000))
    maps = ["-map", "0:v", "-map", "1:v", "-disposition:v:0", "0", "-disposition:v:1", "default"]
    path = convert(ffmpeg, "-i", first, "-i", other, *maps, "-c", "copy", tmp_path / "two.mkv")
    assert probe_video(path, ffprobe=ffprobe, timeout_seconds=30).stream_index == 1
    assert numbers(path) == numbers(other)


# Pixels


def gradient(number: int) -> np.ndarray:
    """Smooth colours that move, uint8 [64, 96, 3]."""
    y, x = np.mgrid[:64, :96]
    return np.stack([x * 2 + number, y * 3, 255 - x - y], axis=-1).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("codec", "pixels", "options"),
    [
        (
            "libx265",
            "yuv420p10le",
            {"x265-params": f"log-level=none:{HDR}"},
        ),
        ("libx264", "yuvj420p", {}),
        ("libx264", "yuv420p", {"x264-params": "colormatrix=bt709:range=tv"}),
        ("libx264", "yuv420p", {"x264-params": "colormatrix=bt709:range=pc"}),
        ("ffv1", "gbrp10le", {}),
        ("ffv1", "gray", {}),
        ("rawvideo", "pal8", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_deep_and_wide_colours_are_those_of_the_command_line(
    tmp_path, ffmpeg, codec, pixels, options
):
    path = tmp_path / "colours.mkv"
    if pixels == "pal8":
        path = convert(
            ffmpeg,
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=96x64:rate=10:duration=0.5",
            path.with_suffix(".gif"),
        )
    else:
        draw = {"codec": codec, "pixels": pixels, "draw": gradient, "codec_options": options}
        write_video(path, steady(6, 10), rate=10, **draw)
    assert_like_command_line(ffmpeg, path)


def test_interlaced_pictures_are_those_of_the_command_line(tmp_path, ffmpeg):
    path = write_video(
        tmp_path / "interlaced.mpg",
        steady(50),
        codec="mpeg2video",
        ticks=25,
        draw=lambda k: np.roll(gradient(0), 3 * k, axis=1),
        codec_options={"flags": "+ildct+ilme", "bf": "2", "b": "4000000"},
    )
    assert_like_command_line(ffmpeg, path)


# Damage


@pytest.mark.parametrize("seed", range(3))
def test_bit_rot_leaves_the_length_that_the_command_line_finds(tmp_path, ffmpeg, seed):
    options = {"container_options": {"movflags": "faststart"}, "codec_options": {"g": "10"}}
    path = write_video(tmp_path / "rot.mp4", steady(200), **options)
    rot(path, bytes_changed=60, after=0.5, seed=seed)
    found, report = decode(path)
    theirs = command_line(ffmpeg, path, f"fps=10,{LARGEST}", 32)
    assert report.packets == pytest.approx(200, abs=2)
    assert len(found) == pytest.approx(len(theirs), abs=2)


# Lengths


@pytest.mark.parametrize("tail", ["repeat", "zero", "drop"])
@pytest.mark.parametrize(("frames", "rate"), [(1, 25), (15, 25), (2, 0.5)])
def test_short_videos_have_one_vector(tmp_path, tail, frames, rate):
    path = write_video(tmp_path / "short.mp4", steady(frames, rate), rate=rate)
    grid = Sampling(frame_rate=10, frames=64, stride_seconds=6.4, tail=tail)
    reader = VideoReader(path, sampling=grid, geometry=Geometry(32))
    (window,) = reader.windows()
    own = reader.report.num_frames
    assert grid.valid_frames(own).tolist() == [own]
    assert own == pytest.approx(max(1, 10 * frames / rate), abs=1)
    fill = np.zeros_like(window[0]) if tail == "zero" else window[own - 1]
    assert (window[own:] == fill).all()


@linux
def test_memory_does_not_grow_with_the_length(tmp_path):
    flat = np.zeros((16, 16, 3), np.uint8)
    peaks = []
    for seconds in (20, 600):
        times = steady(10 * seconds, 10)
        path = tmp_path / f"{seconds}.mp4"
        write_video(path, times, rate=10, codec="mpeg4", draw=lambda _: flat)
        count, peak = child('print(decode(sys.argv[1]), kilobytes("VmHWM"))', path)
        assert count == pytest.approx(seconds / 1.6, abs=1)
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 20_000, "ten minutes of windows are 226 MB"


@linux
def test_many_files_leave_no_memory_behind(tmp_path):
    good = write_video(tmp_path / "good.mp4", steady(10), audio_seconds=0.4)
    bad = write_video(tmp_path / "bad.mp4", steady(10), audio_seconds=0.4)
    cut(bad, 0.5)
    code = """
from pipeline.formats.manifest import VideoFault
def both():
    decode(sys.argv[1])
    try:
        decode(sys.argv[2])
    except VideoFault:
        return
for turn in range(3):
    for _ in range(100):
        both()
    print(kilobytes("VmRSS"))
"""
    early, _, late = child(code, good, bad)
    assert late - early < 5_000


# Waiting


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_named_pipe_never_hangs(tmp_path, ffprobe, plain_video, workers):
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    with pytest.raises(VideoFault) as caught:
        probe_video(pipe, ffprobe=ffprobe, timeout_seconds=30)
    assert caught.value.reason is Reason.NOT_A_FILE
    jobs = [Job(0, str(pipe), 4.0), Job(1, str(plain_video), 4.0)]
    grid, ends = PRESETS["half-hertz"], {}
    for event in decode_all(jobs, grid, Geometry(32), workers=workers, waiting_windows=2):
        ends[event.number] = event
    assert isinstance(ends[0], Failed)
    assert ends[0].reason is Reason.NOT_A_FILE
    assert not isinstance(ends[1], Failed)
