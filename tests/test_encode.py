"""The command that encodes a shard: its features, and what is left when it is killed."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset

from pipeline.encode import main
from pipeline.encoders.interface import load_encoder
from pipeline.formats.manifest import ManifestRow
from pipeline.formats.shard import read_features, read_index
from tests.small_shards import (
    SETTINGS,
    accepted,
    arguments_for,
    outputs_in,
    statuses,
    windows_of,
)
from tests.videos import numbered, steady, write_video

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def command():
    """The command, run in this process; its threads are set back."""
    threads = torch.get_num_threads()
    yield main
    torch.set_num_threads(threads)


def test_the_command_writes_a_shard_of_s3d_features_that_webdataset_streams(
    rows, tmp_path, command
):
    command([*arguments_for(tmp_path, rows), "--workers", "0", "--device", "cpu"])
    tar, index = outputs_in(tmp_path / "out")
    samples = list(webdataset.WebDataset(str(tar), shardshuffle=False))
    assert [json.loads(s["json"])["video_id"] for s in samples] == ["v.1", "v.2", "v.3"]
    encoder = load_encoder(SETTINGS, "cpu")
    for row, sample, entry in zip(rows[1:], samples, read_index(index).rows[1:], strict=True):
        streamed = np.load(io.BytesIO(sample["features.npy"]), allow_pickle=False)
        alone = encoder(torch.from_numpy(windows_of(row))).numpy()
        np.testing.assert_allclose(streamed, alone, rtol=2e-3, atol=2e-3)
        with open(tar, "rb") as file:
            found = read_features(file.fileno(), entry.offset, 1024, 0, entry.num_vectors)
        assert np.array_equal(found, streamed)
    assert statuses(tmp_path / "out")["bad"] == ("rejected", "empty")
    recipe = read_index(index).recipe
    assert (recipe.weights_sha256, recipe.feature_dim) == (encoder.weights_sha256, 1024)


def test_decoding_processes_need_no_torch():
    code = "import sys, pipeline.encode, pipeline.decode_pool; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def start(folder: Path, rows: list[ManifestRow]) -> subprocess.Popen:
    """The command in a process of its own, slow enough to be met at work."""
    command = [sys.executable, "-m", "pipeline.encode", *arguments_for(folder, rows)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def wait_for_pieces(folder: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("out/.partial/00000/*.npz"))) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def long_rows(rows, tmp_path):
    """Two short videos, then one that takes a while."""
    times = steady(250)
    path = write_video(tmp_path / "long.mp4", times, draw=lambda i: numbered(i, 32, 32))
    return [*rows[:3], accepted(path, "long", 10.0)]


def test_after_kill_minus_9_the_next_run_re_uses_what_was_done_and_gives_the_same_bytes(
    long_rows, tmp_path, command, caplog
):
    process = start(tmp_path, long_rows)
    wait_for_pieces(tmp_path, 2, process)
    process.kill()
    process.communicate()
    assert list((tmp_path / "out").glob("00000.*")) == []
    caplog.set_level("INFO")
    command(arguments_for(tmp_path, long_rows))
    assert "2 re-used, 1 encoded, 0 failed" in caplog.text
    found = [path.read_bytes() for path in outputs_in(tmp_path / "out")]
    shutil.rmtree(tmp_path / "out")
    command(arguments_for(tmp_path, long_rows))
    assert "0 re-used, 3 encoded, 0 failed" in caplog.text
    assert [path.read_bytes() for path in outputs_in(tmp_path / "out")] == found


def children_of(process: subprocess.Popen) -> list[str]:
    """Process ids of what `process` has started and is alive."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, parent, *_ = file.read_text().rpartition(")")[2].split()
            found += [file.parent.name] if int(parent) == process.pid else []
    return found


def works(pid: str) -> bool:
    """Whether a process runs: one that is over but not yet collected has no command line."""
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


def test_after_kill_minus_9_at_random_moments_the_bytes_are_those_of_an_undisturbed_run(
    long_rows, tmp_path, command
):
    began = time.monotonic()
    undisturbed = start(tmp_path, long_rows)
    undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0
    seconds = time.monotonic() - began
    expected = [path.read_bytes() for path in outputs_in(tmp_path / "out")]
    shutil.rmtree(tmp_path / "out")
    draw = random.Random(0)
    killed = 0
    for _ in range(3):
        process = start(tmp_path, long_rows)
        time.sleep(draw.uniform(0.3, 0.8) * seconds)
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed
    command(arguments_for(tmp_path, long_rows))
    assert [path.read_bytes() for path in outputs_in(tmp_path / "out")] == expected
    assert not (tmp_path / "out/.partial/00000").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_without_a_trace(long_rows, tmp_path, number, status):
    process = start(tmp_path, long_rows)
    wait_for_pieces(tmp_path, 2, process)
    decoders = children_of(process)
    assert decoders
    process.send_signal(number)
    log = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert "Traceback" not in log
    assert list((tmp_path / "out").rglob("*.tmp")) == []
    assert list((tmp_path / "out").glob("00000.*")) == []
    deadline = time.monotonic() + 10
    while any(works(pid) for pid in decoders):
        assert time.monotonic() < deadline, "a decoding process outlives its command"
        time.sleep(0.05)
