"""What goes wrong while shards are written or read: every kind, and where it is tested.

`e`: tests/test_encode.py, `r`: tests/test_reuse.py, `s`: tests/test_formats_shard.py,
`y`: tests/test_verify.py; the others stand here or are named.

    ids with dots, slashes, spaces      test_odd_ids_...; s test_keys_are_safe_names_...
    the same id twice                   test_bad_input.py test_repeated_video_id_names_both_lines
    ids that differ in case alone       test_ids_that_differ_in_case_...
    a tar cut anywhere                  y "cut", "cut on a border"; test_batch.py
                                        test_videos_that_cannot_be_read_...
    a shard without samples             test_encode_shard.py test_a_shard_without_a_good_...
    shards of uneven size over ranks    test_data.py test_ranks_together_hold_the_step_of_...
    a restart writes another shard      test_plan.py test_planning_twice_gives_the_same_bytes_...
    killed in the middle of a shard     e test_after_kill_minus_9_...; test_a_writer_killed_... of
                                        test_formats_files.py
    failed videos, repaired or added    r test_failed_videos_are_...; r test_added_and_removed_...
    many files open at once             test_many_videos_need_no_more_open_files
    a full disk                         test_a_full_disk_...
    a folder that cannot be written     test_a_folder_that_cannot_be_written_...
    a playlist named .mp4               test_probe.py and test_video_stream.py
                                        test_playlists_reach_...
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import webdataset

from pipeline.formats.partial import partial_path
from pipeline.formats.shard import read_index
from pipeline.tools.verify import check_shard
from tests.small_shards import accepted, arguments_for, encode, outputs_in
from tests.stand_ins import Means
from tests.videos import steady, write_video

ROOT = Path(__file__).resolve().parents[1]
ODD_IDS = ["a.1", "a.2", "22.0/1.1", "-3CEg4y7mQM", "é ü", "100%", "%2E", "../../up", "名", "a\\b"]


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    """A video of one second."""
    return write_video(tmp_path_factory.mktemp("short") / "short.mp4", steady(25))


@contextmanager
def files_limited_to(size: int):
    """Let no file of this process grow beyond `size` bytes: to a writer, a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_odd_ids_come_back_from_any_reader(short, tmp_path):
    encode([accepted(short, video_id, 1.0) for video_id in ODD_IDS], tmp_path / "out")
    tar, index = outputs_in(tmp_path / "out")
    samples = list(webdataset.WebDataset(str(tar), shardshuffle=False))
    assert [json.loads(sample["json"])["video_id"] for sample in samples] == ODD_IDS
    assert [row.video_id for row in read_index(index).rows] == ODD_IDS
    assert check_shard(tar, fast=False)[1] == []
    assert not (tmp_path / "up").exists()


def test_ids_that_differ_in_case_do_not_share_a_file(short, tmp_path):
    paths = [partial_path(tmp_path, video_id) for video_id in ("AbC", "aBc")]
    assert len({str(path).casefold() for path in paths}) == 2
    encode([accepted(short, video_id, 1.0) for video_id in ("AbC", "aBc")], tmp_path / "out")
    assert check_shard(tmp_path / "out/00000.tar", fast=False)[1] == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_many_videos_need_no_more_open_files(short, tmp_path):
    class Counting(Means):
        most = 0

        def __call__(self, windows_BTHWC):
            self.most = max(self.most, len(os.listdir("/proc/self/fd")))
            return super().__call__(windows_BTHWC)

    few, many = Counting(), Counting()
    encode([accepted(short, f"{k}", 1.0) for k in range(2)], tmp_path / "few", encoder=few)
    encode([accepted(short, f"{k}", 1.0) for k in range(40)], tmp_path / "many", encoder=many)
    assert many.most <= few.most + 1


@pytest.mark.parametrize("size", [200, 6000], ids=["finished video", "tar"])
def test_a_full_disk_leaves_no_half_file_and_the_next_run_goes_on(short, tmp_path, size):
    rows = [accepted(short, f"{k}", 1.0) for k in range(4)]
    with files_limited_to(size), pytest.raises(OSError, match="File too large"):
        encode(rows, tmp_path / "out")
    left = {path.suffix for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert left <= {".npz"}
    assert list((tmp_path / "out").glob("00000.*")) == []
    seen, found = encode(rows, tmp_path / "out")
    again, fresh = encode(rows, tmp_path / "fresh")
    assert found == fresh
    assert seen == (again if size == 200 else 0)


def test_a_full_disk_leaves_the_last_good_shard(short, tmp_path):
    rows = [accepted(short, f"{k}", 1.0) for k in range(4)]
    _, before = encode(rows[:2], tmp_path / "out")
    with files_limited_to(6000), pytest.raises(OSError, match="File too large"):
        encode(rows, tmp_path / "out")
    assert [path.read_bytes() for path in outputs_in(tmp_path / "out")] == before


def refused(arguments: list[str]) -> str:
    """The one line in which the command refuses."""
    command = [sys.executable, "-m", "pipeline.encode", *arguments, "--workers", "0"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if " ERROR " in line]
    assert (done.returncode, len(errors)) == (1, 1), done.stderr
    assert "Traceback" not in done.stderr
    return errors[0]


def test_a_folder_that_is_a_file_is_one_line(short, tmp_path):
    arguments = arguments_for(tmp_path, [accepted(short, "a", 1.0)])
    (tmp_path / "out").rmdir()
    (tmp_path / "out").touch()
    assert str(tmp_path / "out") in refused(arguments)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(short, tmp_path):
    arguments = arguments_for(tmp_path, [accepted(short, "a", 1.0)])
    (tmp_path / "out").chmod(0o555)
    assert "Permission denied" in refused(arguments)
