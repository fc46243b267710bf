"""Reading a frozen section back: exactly its keys, or one line that says which is wrong."""

from dataclasses import asdict, dataclass

import pytest

from pipeline.formats.files import write_json
from pipeline.formats.settings import read_settings


@dataclass(frozen=True, kw_only=True)
class Example:
    size: int
    name: str

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size is {self.size}, must be at least 1")


def read(tmp_path, values):
    write_json(tmp_path / "example.json", values)
    return read_settings(Example, tmp_path / "example.json")


def test_round_trip(tmp_path):
    assert read(tmp_path, asdict(Example(size=2, name="a"))) == Example(size=2, name="a")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 1, "name": "a", "sise": 2}, "unknown key 'sise', allowed: name, size"),
        ({"size": 1}, "the key 'name' is missing"),
        ({"size": 0, "name": "a"}, r"example\.json: size is 0, must be at least 1"),
        ([1, 2], "must hold a JSON object, found list"),
    ],
)
def test_anything_else_is_one_clear_line(tmp_path, values, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, values)
    assert "\n" not in str(caught.value)
