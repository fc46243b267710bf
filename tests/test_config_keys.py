"""The README's table of config keys says what the schema says."""

from __future__ import annotations

import yaml

from tests.config_keys import README, ROOT, table, written


def test_the_readmes_table_is_up_to_date():
    text = README.read_text(encoding="utf-8")
    assert written(text) == text, "run python -m tests.config_keys"


def _keys(values: dict, prefix: str = "") -> set[str]:
    found = set()
    for name, value in values.items():
        below = isinstance(value, dict) and bool(value)
        found |= _keys(value, f"{prefix}{name}.") if below else {f"{prefix}{name}"}
    return found


def test_every_key_of_the_demo_stands_in_the_table_with_a_description():
    values = yaml.safe_load((ROOT / "config/config.yaml").read_text(encoding="utf-8"))
    rows = [line.split(" | ") for line in table().splitlines()[2:]]
    described = {row[0].strip("| *`"): row[1] for row in rows}
    assert _keys(values) <= described.keys()
    assert all(len(text) > 5 for text in described.values())
