"""The stage `manifest`: the same bytes with any number of workers, and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.formats.manifest import read_manifest
from pipeline.formats.plan import PlannedVideo, write_planned_videos
from pipeline.manifest import main

ROOT = Path(__file__).resolve().parents[1]


def arguments(folder: Path, videos: list[PlannedVideo], output: str) -> list[str]:
    write_planned_videos(folder / "plan.tsv", videos)
    values = {"min_seconds": 0, "max_seconds": 36000, "timeout_seconds": 30, "deny_list": None}
    (folder / "settings.json").write_text(json.dumps(values))
    files = {"--plan": "plan.tsv", "--settings": "settings.json", "--output": output}
    return [part for flag, name in files.items() for part in (flag, str(folder / name))]


def test_the_stage_gives_the_same_bytes_whatever_the_number_of_workers(tmp_path, broken_videos):
    for output, workers in (("one.parquet", "1"), ("four.parquet", "4")):
        main([*arguments(tmp_path, broken_videos, output), "--workers", workers])
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "four.parquet").read_bytes()
    assert [row.video_id for row in read_manifest(tmp_path / "one.parquet")][-1] == "gone"


def test_no_workers_is_refused(tmp_path, broken_videos):
    with pytest.raises(ValueError, match="--workers is 0"):
        main([*arguments(tmp_path, broken_videos, "out.parquet"), "--workers", "0"])


def test_without_ffprobe_the_command_ends_in_one_line(tmp_path, broken_videos):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pipeline.manifest",
            *arguments(tmp_path, broken_videos, "out.parquet"),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "BAGPIPE_FFPROBE": "/no/such/ffprobe"},
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "/no/such/ffprobe" in done.stderr
    assert not (tmp_path / "out.parquet").exists()
