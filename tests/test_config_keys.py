"""The README's table of config keys says what the schema says."""

from __future__ import annotations

import re

import pytest
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


def test_recommended_runs_for_howto100m_add_up():
    cell = r"(\d+) × (\d+)"
    row = rf"\| (\d+) \| {cell} \| {cell} × (\d+)[^|]*\| (\d+) \| ([\d.e-]+) \| \d+ \| (\d+) \|"
    rows = re.findall(row, README.read_text(encoding="utf-8"))
    assert {int(row[0]) for row in rows} == {1, 4, 8, 64}
    for gpus, nodes, per_node, clips, ranks, parts, batch, lr, visit in rows:
        assert int(gpus) == int(nodes) * int(per_node) == int(ranks)
        assert int(batch) == int(clips) * int(ranks) * int(parts)
        assert int(clips) % int(visit) == 0
        linear = 8e-4 * int(batch) / 256
        expected = linear * min(1, 256 / int(batch)) ** 0.5
        assert float(lr) == pytest.approx(expected, rel=0.12 if int(batch) == 512 else 0.01)
    howto = yaml.safe_load((ROOT / "config/howto100m.yaml").read_text(encoding="utf-8"))
    train, batches = howto["train"], {int(row[6]): float(row[7]) for row in rows}
    assert batches[train["global_batch"]] == train["lr"]
