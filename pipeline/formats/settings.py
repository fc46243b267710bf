"""Frozen settings: one config section, written to `results/settings/{section}.json` by a rule."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.formats.files import read_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


def read_settings(cls: type[Settings], path: str | Path) -> Settings:
    """Read the settings dataclass `cls` from a JSON object with exactly its fields.

    Raises:
        ValueError: the file names an unknown key, lacks one, or a value is refused by `cls`.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, found {type(values).__name__}")
    return settings_from(cls, values, where=str(path))


def settings_from(cls: type[Settings], values: dict, *, where: str) -> Settings:
    """Make the settings dataclass `cls` from `values`; `where` names their origin in errors."""
    names = {field.name for field in dataclasses.fields(cls)}
    unknown, missing = sorted(values.keys() - names), sorted(names - values.keys())
    if unknown:
        allowed = ", ".join(sorted(names))
        raise ValueError(f"{where}: unknown key {unknown[0]!r}, allowed: {allowed}")
    if missing:
        raise ValueError(f"{where}: the key {missing[0]!r} is missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def check_section(sections: dict[str, type], argv: list[str] | None, *, prog: str) -> None:
    """The command that checks one frozen section, before anything would find its fault hours later.

    Raises:
        ValueError: as `read_settings`.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description="A config section as JSON in; out nothing, or one line that names its fault.",
    )
    parser.add_argument("section", choices=sorted(sections))
    parser.add_argument("file", help="the section, as results/settings/{section}.json holds it")
    arguments = parser.parse_args(argv)
    read_settings(sections[arguments.section], arguments.file)
