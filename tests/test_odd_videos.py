"""Every real odd video has the verdict, and the number of frames, that EXPECTED.md measured.

The folder is not published; name it with BAGPIPE_REAL_DATA. Each file is decoded in a process of
its own, so that one that hangs ends as a failure and not as a silent run.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline.formats.manifest import VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.pixels import Geometry
from pipeline.probe import find_ffprobe, probe_video
from pipeline.video import VideoReader
from tests.videos import command_line

pytestmark = pytest.mark.real

SECONDS_PER_FILE = 60
LATE = "it starts late, and a late start is filled with its first frame, which the table leaves out"
EXCEPTIONS = {
    "androidx_media/edit_list_positive_shift.mp4": (100, LATE),
    "msrvtt/12968.mp4": (138, LATE + " (the frames before the first key frame do not decode)"),
    "rails_activestorage/video.mp4": (52, LATE),
}
"""Files whose number of frames differs from the table's: (frames, why)."""


@dataclass(frozen=True)
class Expected:
    """What the table says of a file."""

    name: str
    verdict: str
    num_frames: int

    @property
    def accepted(self) -> bool:
        return self.verdict.startswith("accept")

    @property
    def reasons(self) -> set[str]:
        """The names that fit the verdict."""
        if "no video stream" in self.verdict:
            return {"no_video_stream"}
        return {"no_frames"} if "0 frames" in self.verdict else {"unreadable", "empty"}


def expected_videos() -> list[Expected]:
    """The rows of the table; empty without the real data."""
    folder = os.environ.get("BAGPIPE_REAL_DATA")
    if not folder:
        return []
    rows = []
    for line in (Path(folder) / "odd" / "EXPECTED.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0].startswith("`"):
            name, frames, verdict = cells[0].strip("`"), cells[11], cells[19]
            rows.append(Expected(name, verdict, int(frames) if frames.isdigit() else 0))
    return rows


def verdict_of(path: Path) -> tuple[str, int, int, int]:
    """The fault of a file ("" when it is good), its frames at 10 a second, and both streams."""
    try:
        probe = probe_video(path, ffprobe=find_ffprobe(), timeout_seconds=SECONDS_PER_FILE)
        with av.open(str(path), metadata_errors="replace") as container:
            stream = container.streams.best("video").index
        grid = Sampling(frame_rate=10, frames=16, stride_seconds=1.6, tail="repeat")
        reader = VideoReader(path, sampling=grid, geometry=Geometry(32))
        windows = sum(1 for _ in reader.windows())
        assert windows == grid.num_vectors(reader.report.num_frames)
        frames = reader.report.num_frames
    except VideoFault as fault:
        return fault.reason.value, -1, -1, -1
    return "", frames, probe.stream_index, stream


@pytest.fixture(scope="module")
def pool():
    """A few processes that are ended with the tests."""
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=40) as processes:
        yield processes


@pytest.mark.skipif(not expected_videos(), reason="BAGPIPE_REAL_DATA names no real videos")
def test_the_table_was_read(real_data):
    assert len(expected_videos()) == 105
    assert {row.name for row in expected_videos()} >= EXCEPTIONS.keys()


@pytest.mark.parametrize("expected", expected_videos(), ids=lambda row: row.name)
def test_real_odd_video(expected, real_data, pool):
    asked = pool.apply_async(verdict_of, (real_data / "odd" / expected.name,))
    reason, frames, probed_stream, decoded_stream = asked.get(timeout=SECONDS_PER_FILE)
    if not expected.accepted:
        assert reason in expected.reasons
        return
    assert reason == ""
    assert probed_stream == decoded_stream
    wanted, tolerance = expected.num_frames, 1
    if expected.name in EXCEPTIONS:
        wanted, tolerance = EXCEPTIONS[expected.name][0], 0
    assert frames == pytest.approx(wanted, abs=tolerance)


def difference_from_command_line(path: Path, ffmpeg: str) -> tuple[int, int, int]:
    """Frames here, frames of the command line, and the largest difference of their pixels."""
    with av.open(str(path), metadata_errors="replace") as container:
        stream = container.streams.best("video").index
    chain = "fps=10,crop='min(iw,ih)':'min(iw,ih)',scale=32:32"
    theirs = command_line(ffmpeg, path, chain, 32, stream=f"0:{stream}")
    grid = Sampling(frame_rate=10, frames=1, stride_seconds=0.1, tail="repeat")
    reader = VideoReader(path, sampling=grid, geometry=Geometry(32))
    worst = count = 0
    for count, (ours,) in enumerate(reader.windows(), start=1):
        if count <= len(theirs):
            worst = max(worst, int(np.abs(ours.astype(int) - theirs[count - 1]).max()))
    return count, len(theirs), worst


@pytest.mark.parametrize(
    "name", [row.name for row in expected_videos() if row.accepted and row.num_frames > 0]
)
def test_real_pixels_are_those_of_the_command_line(name, real_data, ffmpeg, pool):
    path = real_data / "odd" / name
    asked = pool.apply_async(difference_from_command_line, (path, ffmpeg))
    ours, theirs, worst = asked.get(timeout=SECONDS_PER_FILE)
    if theirs == 0:
        pytest.skip("this ffmpeg lacks the decoder")
    assert ours == theirs
    assert worst <= 2
