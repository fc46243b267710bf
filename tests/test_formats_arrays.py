"""The door to `numpy.load`: arrays come back, and no header, pickle or cut file is believed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.arrays import npz_names, num_bytes, read_header, read_npy, read_npz
from tests.fuzzing import bounded_memory

ARRAYS = [
    np.arange(12, dtype="<i4").reshape(3, 4),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(["a", "über"]),
    np.zeros((0, 5), np.float16),
    np.array(7, np.int64),
]


def npy_of(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """A `.npy` file written by hand, after numpy's description of the format."""
    text = header.encode("latin1")
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


def described(shape: object, kind: str = "'<f4'") -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_an_array_comes_back_read_or_mapped(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    for mapped in (False, True):
        found = read_npy(tmp_path / "a.npy", mapped=mapped)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)
    with open(tmp_path / "a.npy", "rb") as file:
        header = read_header(file)
        assert (header[0], header[2]) == (array.shape, array.dtype)
        assert num_bytes(header) == array.nbytes
        assert len(file.read()) == array.nbytes


def test_a_mapped_array_cannot_change_its_file(tmp_path):
    np.save(tmp_path / "a.npy", ARRAYS[0])
    mapped = read_npy(tmp_path / "a.npy", mapped=True)
    assert isinstance(mapped, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0, 0] = 1


def test_a_file_written_by_hand_is_read():
    """So that the tests below fail for what they change alone."""
    file = io.BytesIO(npy_of(described((2, 3)), bytes(24)))
    assert read_header(file) == ((2, 3), False, np.dtype("<f4"))
    assert file.tell() % 64 == 0


@pytest.mark.parametrize("read", [read_npy, lambda path: read_npy(path, mapped=True)])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUM",
        b"hello",
        npy_of(described((2, 3)), bytes(23)),
        npy_of(described((2, 3)))[:40],
        npy_of(described((10**12,)), bytes(24)),
        npy_of(described((2**62, 2**62)), bytes(24)),
        npy_of(described((-2, 3)), bytes(24)),
        npy_of(described("'x'"), bytes(24)),
        npy_of(described((2, 3), "'nothing'"), bytes(24)),
        npy_of(described((2, 3), "'|O'"), bytes(24)),
        npy_of("{'descr': '<f4'", bytes(24)),
        npy_of("__import__('os')", bytes(24)),
        npy_of(described((2, 3)), bytes(24), version=b"\7\0"),
    ],
    ids=lambda data: repr(data[:1]) if len(data) < 6 else None,
)
def test_a_file_that_is_no_whole_array_is_one_line(tmp_path, read, data):
    (tmp_path / "a.npy").write_bytes(data)
    with bounded_memory(), pytest.raises(ValueError, match=r"a\.npy is not a whole \.npy") as why:
        read(tmp_path / "a.npy")
    assert "\n" not in str(why.value)
    assert len(str(why.value)) < 300 + len(str(tmp_path))


def test_a_size_that_a_header_made_up_takes_no_memory(tmp_path):
    """A terabyte, of which the file holds 24 bytes; numpy alone would ask for it."""
    (tmp_path / "a.npy").write_bytes(npy_of(described((250_000_000_000,)), bytes(24)))
    with pytest.raises(ValueError, match="1,000,000,000,000 bytes of numbers, and the file has 24"):
        read_npy(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "a.npy", "x.npy")
    with pytest.raises(ValueError, match="1,000,000,000,000 bytes of numbers, and the file has 24"):
        read_npz(tmp_path / "a.npz", "x")


class Touch:
    """Unpickled, makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_objects_are_refused_and_none_of_their_code_runs(tmp_path):
    made = tmp_path / "made"
    np.save(tmp_path / "a.npy", np.array([Touch(made)], dtype=object))
    np.savez(tmp_path / "a.npz", x=np.array([Touch(made)], dtype=object))
    with pytest.raises(ValueError, match=r"a\.npy is not a whole \.npy file: .*object"):
        read_npy(tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"a\.npz is not a whole \.npz file: .*object"):
        read_npz(tmp_path / "a.npz", "x")
    assert not made.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)  # what reading it carelessly does
    assert made.exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_arrays_of_an_archive_come_back_by_name(tmp_path, save):
    save(tmp_path / "a.npz", one=ARRAYS[0], two=ARRAYS[1])
    assert sorted(npz_names(tmp_path / "a.npz")) == ["one", "two"]
    two, one = read_npz(tmp_path / "a.npz", "two", "one")
    assert np.array_equal(one, ARRAYS[0])
    assert np.array_equal(two, ARRAYS[1])
    with pytest.raises(ValueError, match=r"a\.npz is not a whole \.npz file: .*three"):
        read_npz(tmp_path / "a.npz", "one", "three")


def test_a_changed_byte_of_an_archive_is_noticed(tmp_path):
    np.savez(tmp_path / "a.npz", x=ARRAYS[0])
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(ARRAYS[0].tobytes()) + 5] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.npz is not a whole \.npz file: Bad CRC-32"):
        read_npz(tmp_path / "a.npz", "x")


def test_an_archive_cut_anywhere_is_one_line(tmp_path):
    np.savez(tmp_path / "a.npz", x=ARRAYS[0])
    whole = (tmp_path / "a.npz").read_bytes()
    for size in range(0, len(whole), 7):
        (tmp_path / "a.npz").write_bytes(whole[:size])
        for read in (lambda path: read_npz(path, "x"), npz_names):
            with pytest.raises(ValueError, match=r"a\.npz is not a whole \.npz file: \S"):
                read(tmp_path / "a.npz")


def test_a_file_that_is_not_there_is_no_damaged_one(tmp_path):
    for read in (read_npy, npz_names, lambda path: read_npz(path, "x")):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")
