"""Two starts beside each other: equal ones tell nothing, others their first difference."""

from __future__ import annotations

import json

import pytest
import torch

from tests.synthetic_bags import make_results, run_folder, write_settings
from trainer.tools import compare
from trainer.train import main


def test_starts_are_recorded_and_the_first_difference_is_named(tmp_path, capsys):
    first, second = make_results(tmp_path / "a"), make_results(tmp_path / "b")
    main(first.train_arguments(validate_every=0))
    main(second.train_arguments(validate_every=0, save_every=2))
    record = json.loads((run_folder(first) / "start-step-00000000.json").read_text())
    assert record["world"] == 1
    assert record["machines"][0]["torch"] == torch.__version__
    assert {"inputs", "weights", "embeddings", "loss", "gradients"} <= record["fixed_batch"].keys()
    assert record["fixed_batch"]["shapes"]["bags"][1] == 3

    found = compare.differences(record, compare.read_start(run_folder(second)))
    assert [line for line in found if not line.startswith(("command", "machines"))] == []

    write_settings(second, lr=0.02)
    main(second.train_arguments(validate_every=0, state=tmp_path / "lr"))
    with pytest.raises(SystemExit):
        compare.main([str(run_folder(first)), str(next((tmp_path / "lr").glob("state-*")))])
    assert "first difference: settings.lr: 0.01 | 0.02" in capsys.readouterr().out

    other = json.loads(json.dumps(record))
    other["fixed_batch"]["embeddings"]["sha256"] = other["fixed_batch"]["loss"]["sha256"] = "x"
    assert compare.differences(record, other)[0].startswith("fixed_batch.embeddings.sha256: ")
    with pytest.raises(FileNotFoundError, match=r"name a run's own folder, such as \S+/state-"):
        compare.read_start(tmp_path / "lr")
