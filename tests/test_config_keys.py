"""The README's table of config keys says what the schema says."""

from __future__ import annotations

import yaml

from tests.config_keys import README, ROOT, table, written


def test_the_readmes_table_is_up_to_date():
    text = README.read_text(encoding="utf-8")
    assert written(text) == text, "run python -m tests.config_keys"


def test_every_key_of_the_demo_stands_in_the_table_with_a_description():
    values = yaml.safe_load((ROOT / "config/config.yaml").read_text(encoding="utf-8"))
    rows = [line.split(" | ") for line in table().splitlines()[2:]]
    described = {row[0].strip("| *`"): row[1] for row in rows}
    for section, keys in values.items():
        assert {f"{section}.{key}" for key in keys} <= described.keys()
    assert {f"run.train.{key}" for key in values["run"]["train"]} <= described.keys()
    assert all(len(text) > 5 for text in described.values())
