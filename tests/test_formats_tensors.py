"""The door to `torch.load`: weights come back, nothing in a file runs, and damage is one line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from pipeline.formats.tensors import check_sums, is_out_of_memory, read_tensors
from tests.stand_ins import NO_MEMORY

STATE = {"a": torch.arange(5.0), "words": ["über", "b"], "deep": {"step": 7, "none": None}}


class Touch:
    """Unpickled, makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_texts_and_numbers_come_back(tmp_path, zipped):
    torch.save(STATE, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    for source in (tmp_path / "a.pt", io.BytesIO((tmp_path / "a.pt").read_bytes())):
        found = read_tensors(source)
        assert torch.equal(found.pop("a"), STATE["a"])
        assert found == {"words": STATE["words"], "deep": STATE["deep"]}


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_refused_and_does_not_run(tmp_path, zipped):
    path, made = tmp_path / "a.pt", tmp_path / "made"
    torch.save({"a": Touch(made)}, path, _use_new_zipfile_serialization=zipped)
    line = r"a\.pt is not a whole PyTorch file of weights alone: it is none, or holds more than"
    with pytest.raises(ValueError, match=line):
        read_tensors(path)
    assert not made.exists()
    torch.load(path, weights_only=False)  # what reading it carelessly does
    assert made.exists()


def test_a_whole_module_is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 1), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt is not a whole PyTorch file"):
        read_tensors(tmp_path / "a.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_cut_anywhere_is_one_line(tmp_path, zipped):
    path = tmp_path / "a.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"a\.pt is not a whole PyTorch file") as caught:
            read_tensors(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300 + len(str(path))


def test_a_web_page_is_named_as_the_caller_knows_it(tmp_path):
    with pytest.raises(ValueError, match=r"^w of the cache is not a whole model: "):
        read_tensors(io.BytesIO(b"<html>"), where="w of the cache", what="model")


def test_a_file_that_is_not_there_is_no_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "none.pt")


def test_a_changed_byte_is_noticed_by_the_sums_alone(tmp_path):
    path = tmp_path / "a.pt"
    torch.save(STATE, path)
    check_sums(path, what="model")
    data = bytearray(path.read_bytes())
    data[data.index(STATE["a"].numpy().tobytes()) + 4] ^= 1
    path.write_bytes(data)
    assert not torch.equal(read_tensors(path)["a"], STATE["a"])
    with pytest.raises(ValueError, match=r"a\.pt is not a whole model: .*data/0 is damaged"):
        check_sums(path, what="model")
    path.write_bytes(data[:-30])
    with pytest.raises(ValueError, match=r"a\.pt is not a whole model: \S"):
        check_sums(path, what="model")


def test_every_form_of_a_lack_of_memory_is_known_and_no_other_fault_is_taken_for_it():
    assert all(is_out_of_memory(error) for error in NO_MEMORY)
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))


def test_torch_s_own_words_for_it_are_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
