"""Reading a frozen section back: exactly its keys, or one line that says which is wrong."""

import math
from dataclasses import asdict, dataclass

import pytest

from pipeline.formats.files import write_json
from pipeline.formats.settings import read_settings, settings_from


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


@dataclass(frozen=True, kw_only=True)
class Typed:
    size: int
    share: float
    flag: bool
    path: str | None
    more: dict[str, str] | None


GOOD = {"size": 1, "share": 0.5, "flag": True, "path": None, "more": {}}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("size", "1", "size is '1', must be a whole number"),
        ("size", 1.0, "size is 1.0, must be a whole number"),
        ("size", True, "size is True, must be a whole number"),
        ("size", None, "size is None, must be a whole number"),
        ("share", math.nan, "share is nan, must be a finite number"),
        ("share", -math.inf, "share is -inf, must be a finite number"),
        ("share", [1], r"share is \[1\], must be a number"),
        ("flag", 1, "flag is 1, must be true or false"),
        ("path", 5, "path is 5, must be null or text"),
        ("more", "x" * 999, r"more is 'x{79}\.\.\., must be a section of keys or null"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_line(key, value, message):
    with pytest.raises(ValueError, match=f"^config: {message}$"):
        settings_from(Typed, GOOD | {key: value}, where="config")


def test_a_whole_number_is_a_number():
    assert settings_from(Typed, GOOD | {"share": 10**400}, where="config").share == 10**400
