"""Mapped files: the right bytes, read-only, alive as long as a view is, without descriptors."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from pipeline.formats.mapped_files import let_go, map_file


def num_maps(path) -> int:
    with open("/proc/self/maps") as file:
        return sum(str(path) in line for line in file)


def open_files() -> list[str]:
    return [os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd")]


def test_bytes_are_the_files_and_cannot_be_written(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())
    content = map_file(tmp_path / "file")
    assert np.array_equal(content, data)
    with pytest.raises(ValueError, match="read-only"):
        content[0] = 1
    (tmp_path / "empty").write_bytes(b"")
    assert len(map_file(tmp_path / "empty")) == 0
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "none")


def test_a_map_lives_as_long_as_a_view_and_holds_no_descriptor(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abcdefgh" * 4096)
    view = map_file(path)[8:16].view("<u8")
    gc.collect()
    assert view.tobytes() == b"abcdefgh"
    assert num_maps(path) == 1
    assert str(path) not in open_files()
    del view
    gc.collect()
    assert num_maps(path) == 0


def test_pages_that_were_let_go_come_back(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abcdefgh" * 400_000)
    content = map_file(path)
    before = int(content.sum())
    let_go(content)
    with open("/proc/self/smaps") as file:
        text = file.read().split(str(path))[1]
    assert "Rss:                   0 kB" in text.split("Pss:")[0]
    assert int(content.sum()) == before
    let_go(content[:0])
