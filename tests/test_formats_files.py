"""Whole or not at all."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from pipeline.formats.files import (
    digest_of,
    read_json,
    sha256_of_file,
    whole_file,
    write_csv,
    write_json,
)


def test_a_file_that_is_not_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), whole_file(path) as scratch:
        scratch.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_writer_killed_at_its_worst_moment_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = (
        "import os, signal, sys\n"
        "from pipeline.formats.files import whole_file\n"
        "with whole_file(sys.argv[1]) as scratch:\n"
        "    scratch.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_folders_are_made_and_json_is_the_same_bytes_in_any_key_order(tmp_path):
    write_json(tmp_path / "new/a.json", {"b": 1, "a": "é"})
    write_json(tmp_path / "new/b.json", {"a": "é", "b": 1})
    assert (tmp_path / "new/a.json").read_bytes() == (tmp_path / "new/b.json").read_bytes()
    assert read_json(tmp_path / "new/a.json") == {"a": "é", "b": 1}


def test_nan_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_json_is_named(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff{")
    with pytest.raises(ValueError, match=r"a\.json is not a JSON file"):
        read_json(tmp_path / "a.json")


def test_csv_quotes_what_needs_it(tmp_path):
    write_csv(tmp_path / "a.csv", ["a", "b"], [["x,y", 'say "hi"']])
    assert (tmp_path / "a.csv").read_text() == 'a,b\n"x,y","say ""hi"""\n'


def test_digests_follow_content_alone(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of_file(tmp_path / "a") == expected
    assert digest_of({"a": 1, "b": [2]}) == digest_of(json.loads('{"b": [2], "a": 1}'))
    assert digest_of({"a": 1}) != digest_of({"a": 2})


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{", "\xff"])
def test_json_that_is_none_is_named(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.json is not a JSON file"):
        read_json(tmp_path / "a.json")


def test_a_full_disk_names_the_file(tmp_path):
    def fill():
        with whole_file(tmp_path / "model.pt"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*model\.pt'"):
        fill()
    assert list(tmp_path.iterdir()) == []
