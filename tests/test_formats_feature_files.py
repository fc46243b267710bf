"""Feature files of other tools: found by id under any of their names, read with care."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.formats.feature_files import array_path, find_arrays, read_array, write_array


@pytest.mark.parametrize("name", ["a.b.npy", "a.b.mp4.npy", "a%2Eb.webm.npy", "a.b.mkv.npz"])
def test_a_name_is_the_id_or_its_key_with_known_endings(tmp_path, name):
    (tmp_path / name).touch()
    assert find_arrays(tmp_path, "a.b") == [tmp_path / name]
    assert find_arrays(tmp_path, "a") == []


def test_an_id_never_leaves_the_folder(tmp_path):
    (tmp_path / "secret.npy").touch()
    (tmp_path / "inner").mkdir()
    assert find_arrays(tmp_path / "inner", "../secret") == []
    assert find_arrays(tmp_path / "inner", "a\0b") == []
    assert find_arrays(tmp_path / "inner", "a" * 300) == []  # longer than names may be


def test_what_is_written_is_read(tmp_path):
    features = np.random.default_rng(0).random((3, 4)).astype(np.float16)
    write_array(tmp_path / "a.npy", features)
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy", 4), features)
    with pytest.raises(ValueError, match=r"has the shape \(3, 4\), needed: \(T, 5\)"):
        read_array(tmp_path / "a.npy", 5)


def test_a_size_that_the_header_made_up_takes_no_memory(tmp_path):
    path = tmp_path / "a.npy"
    with open(path, "wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (10**12, 4)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(80))
    with pytest.raises(ValueError, match="8,000,000,000,000 bytes of numbers, and the file has 80"):
        read_array(path, 4)


def test_features_are_written_where_they_are_looked_for(tmp_path):
    for video_id in ("a", "a/b", "a b", "\u044f" * 54, "x" * 200):
        path = array_path(tmp_path, video_id)
        write_array(path, np.zeros((2, 3), np.float16))
        assert find_arrays(tmp_path, video_id) == [path]
    assert array_path(tmp_path, "\u044f" * 54).stem == "\u044f" * 54
    assert array_path(tmp_path, "x" * 201) is None
    assert array_path(tmp_path, "\u044f/" * 60) is None
