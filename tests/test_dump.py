"""What is left of a step that was not finite: all that a replay reads, and one line."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.formats.files import read_json
from tests.synthetic_bags import FEATURE_DIM, NUM_WORDS, make_results, step_data
from trainer.distributed import World
from trainer.dump import INPUTS, stop_not_finite
from trainer.model import build_model


def run_on(rank: int, folder: Path) -> SimpleNamespace:
    """As much of a run as a dump needs, on one of two ranks."""
    data = step_data(make_results(folder / "results"))
    model = build_model(data.settings, feature_dim=FEATURE_DIM, num_words=NUM_WORDS)
    return SimpleNamespace(
        settings=data.settings,
        data=data,
        model=model,
        folder=folder,
        world=World(rank=rank, size=2, device=torch.device("cpu"), cpu_group=None),
        arguments=argparse.Namespace(**{name: f"results/{name}" for name in INPUTS}),
    )


def test_the_first_rank_leaves_weights_and_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_on(0, tmp_path)
    batch = run.data[3]
    with pytest.raises(ValueError, match=r"^step 3: the loss is nan; the weights") as caught:
        stop_not_finite(run, batch, "the loss is nan")
    path = tmp_path / "not-finite-step-3-rank-0.json"
    assert f"python -m trainer.train --replay {path}" in str(caught.value)
    assert "\n" not in str(caught.value)
    dump = read_json(path)
    assert (dump["step"], dump["what"]) == (3, "the loss is nan")
    assert dump["clip_ids"] == batch.clip_ids_B.tolist()
    assert dump["caption_ids"] == batch.caption_ids_N.tolist()
    assert dump["settings"] == asdict(run.settings)
    assert dump["inputs"]["bags"] == str(tmp_path / "results/bags")
    weights = torch.load(tmp_path / dump["weights"], weights_only=True)
    for name, value in run.model.state_dict().items():
        assert torch.equal(weights[name], value), name


def test_another_rank_leaves_its_batch_in_silence(tmp_path):
    run = run_on(1, tmp_path)
    with pytest.raises(SystemExit):
        stop_not_finite(run, run.data[0], "the loss is nan")
    assert [path.name for path in tmp_path.glob("not-*")] == ["not-finite-step-0-rank-1.json"]


def test_a_rank_that_alone_knows_speaks_for_itself(tmp_path):
    run = run_on(1, tmp_path)
    with pytest.raises(ValueError, match=r"^rank 1: step 0: Function 'X' returned nan"):
        stop_not_finite(run, run.data[0], "Function 'X' returned nan", everywhere=False)
    names = {path.name for path in tmp_path.glob("not-*")}
    assert names == {"not-finite-step-0-rank-1.json", "not-finite-step-0-rank-1.pt"}
