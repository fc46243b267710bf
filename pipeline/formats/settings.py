"""Frozen settings: one config section, written to `results/settings/{section}.json` by a rule."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import read_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")
_NAMES: dict[Any, str] = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false",
    dict: "a section of keys", list: "a list", type(None): "null",
}  # fmt: skip
_SHOWN = 80
"""Characters of a wrong value that an error repeats."""


def read_settings(cls: type[Settings], path: str | Path, *, where: str | None = None) -> Settings:
    """Read the settings dataclass `cls` from a JSON object with exactly its fields.

    `where` names the origin in errors; by itself it is the path.

    Raises:
        ValueError: the file names an unknown key, lacks one, or a value is refused by `cls`.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, found {type(values).__name__}")
    return settings_from(cls, values, where=where or str(path))


def settings_from(cls: type[Settings], values: dict, *, where: str) -> Settings:
    """Make the settings dataclass `cls` from `values`; `where` names their origin in errors."""
    names = {field.name for field in dataclasses.fields(cls)}
    unknown, missing = sorted(values.keys() - names), sorted(names - values.keys())
    if unknown:
        allowed = ", ".join(sorted(names))
        raise ValueError(f"{where}: unknown key {_shown(unknown[0])}, allowed: {allowed}")
    if missing:
        raise ValueError(f"{where}: the key {missing[0]!r} is missing")
    try:
        for name, kind in typing.get_type_hints(cls).items():
            _check_type(name, values[name], kind)
        return cls(**values)
    except (ValueError, OverflowError) as error:  # OverflowError: integers that no float can hold
        raise ValueError(f"{where}: {error}") from None


def check_section(sections: dict[str, type], argv: list[str] | None, *, prog: str) -> None:
    """The command that checks one frozen section, before anything would find its fault hours later.

    Raises:
        ValueError: as `read_settings`.
    """
    parser = CommandLine(
        prog=prog,
        description="A config section as JSON in; out nothing, or one line that names its fault.",
    )
    parser.add_argument("section", choices=sorted(sections))
    parser.add_argument("file", help="the section, as results/settings/{section}.json holds it")
    arguments = parser.parse_args(argv)
    section = arguments.section
    read_settings(sections[section], arguments.file, where=f"the config's section {section!r}")


def _check_type(name: str, value: object, kind: object) -> None:
    """Refuse a value that the field's annotation does not allow; floats are finite."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    allowed = {typing.get_origin(one) or one for one in kinds}
    found = type(value)
    if found not in allowed and not (found is int and float in allowed):
        told = " or ".join(sorted(_NAMES[one] for one in allowed))
        raise ValueError(f"{name} is {_shown(value)}, must be {told}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}, must be a finite number")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
