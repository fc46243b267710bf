"""The table of all config keys in config/README.md, made from the schema and the defaults.

Reads   workflow/schemas/config.schema.yaml, config/config.yaml
Writes  the part of config/README.md between its two markers
By hand `python -m tests.config_keys`; tests/test_config_keys.py fails while the table is older
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "config/README.md"
BEGIN = "<!-- keys: made by `python -m tests.config_keys` -->\n"
END = "<!-- keys end -->\n"


def table() -> str:
    """All keys in the schema's order, a section's own line above its keys."""
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text("utf-8"))
    values = yaml.safe_load((ROOT / "config/config.yaml").read_text("utf-8"))
    lines = ["| key | what it is | allowed | demo |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(_escaped(cells)) + " |" for cells in _rows(schema, values, "")]
    return "\n".join(lines) + "\n"


def _rows(schema: dict, values: dict, prefix: str) -> Iterator[list[str]]:
    for name, part in schema["properties"].items():
        key, value = f"{prefix}{name}", values.get(name)
        if "properties" in part:
            yield [f"**{key}**", part["description"], "", ""]
            yield from _rows(part, value, f"{key}.")
            continue
        demo = f"`{_text(value)}`" if name in values else ""
        yield [f"`{key}`", part["description"], _allowed(part), demo]
        if "properties" in part.get("else", {}):  # a mapping, where a name would do
            yield from _rows(part["else"], {}, f"{key}.")


def _allowed(part: dict) -> str:
    """Type and range of a key in words."""
    if "enum" in part:
        return ", ".join(f"`{_text(value)}`" for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(map(_allowed, part["anyOf"]))
    if "then" in part:
        first = part["then"] if "enum" in part["then"] else {**part["if"], **part["then"]}
        return f"{_allowed(first)} or {_allowed(part['else'])}"
    if part.get("type") == "object":
        return "a mapping"
    if part.get("type") == "array":
        return f"a list of {_allowed(part['items'])}"
    kinds = part.get("type", "any")
    words = [" or ".join([kinds] if isinstance(kinds, str) else kinds)]
    signs = {"minimum": "≥", "maximum": "≤", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    words += [f"{sign} {_text(part[name])}" for name, sign in signs.items() if name in part]
    return ", ".join(words)


def _text(value: object) -> str:
    """A value as YAML writes it."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).split("\n")[0]


def _escaped(cells: list[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in cells]


def written(text: str) -> str:
    """The README's text with the table as it should be."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


def main() -> None:
    """Bring the README up to date."""
    README.write_text(written(README.read_text("utf-8")), encoding="utf-8")
    sys.stdout.write(f"{README} has {table().count(chr(10)) - 2} lines of keys\n")


if __name__ == "__main__":
    main()
