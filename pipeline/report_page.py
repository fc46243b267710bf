"""Fills the pages: everything from data is escaped, and numbers are written for people."""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def fill(template: str, **values: object) -> str:
    """A page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": count,
        "percent": percent,
        "bytes": size,
        "words": words,
        "value": value,
        "duration": duration,
    }
    return environment.get_template(template).render(**values)


def count(number: float) -> str:
    """A whole number with commas."""
    return f"{number:,.0f}"


def percent(number: float) -> str:
    """A fraction as per cent."""
    return f"{100 * number:.1f} %"


def size(number: float) -> str:
    """Bytes with a unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:,.1f} h"


def words(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")


def value(found: object) -> str:
    """A setting as it stands in the config."""
    return found if isinstance(found, str) else json.dumps(found, sort_keys=True)
