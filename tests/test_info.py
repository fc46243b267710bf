"""What the tool says of results and models, and that damage is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.formats.files import sha256_of_file, write_json, write_text
from pipeline.tools import info
from tests.tiny_model import TRAIN, make_tested, run_evaluate, run_search, save_tiny, write_list
from tests.tiny_results import FEATURE_DIM, WORDS, TinyResults
from trainer.checkpoint import save_checkpoint
from trainer.model import build_model


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model."""
    return make_tested(tmp_path)


def said(path: Path, capsys) -> dict[str, str]:
    """The lines of the tool as name and value."""
    info.main([str(path)])
    lines = capsys.readouterr().out.splitlines()
    return {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines}


def test_results_and_models_tell_what_they_rest_on(tiny, capsys):
    model = tiny.root / "train/model.pt"
    write_list(tiny, [("b", 1.0, 4.0, "fry the rice")])
    run_evaluate(tiny)
    run_search(tiny, "egg")
    found = said(model, capsys)
    assert (found["step"], found["words"]) == ("7", "10, 5 of a caption")
    assert found["sha256"] == sha256_of_file(model)
    assert found["health"] == "whole, all finite"
    tested = said(tiny.root / "evaluate/heldout.json", capsys)
    assert tested["what"] == "bagpipe-retrieval-2 heldout"
    assert tested["num pairs"] == "1"
    assert tested["model sha256"] == sha256_of_file(model)
    assert said(tiny.root / "found.json", capsys)["query"] == "egg"
    clips = said(tiny.root / "embeddings/00000.npy", capsys)
    assert clips["clips"] == "6 × 6"
    assert clips["model sha256"] == sha256_of_file(model)
    assert said(tiny.root / "embeddings/00000.parquet", capsys) != {}
    assert said(tiny.root / "settings/bags.json", capsys)["anchor"] == "caption"


def test_a_checkpoint_is_whole_or_damaged(tmp_path, capsys):
    path = save_checkpoint(tmp_path, {"step": 12, "x": torch.zeros(3)}, keep=1)
    found = said(path, capsys)
    assert (found["step"], found["health"]) == ("12", "whole: its checksum holds")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="its checksum does not hold"):
        info.describe(path)


def test_numbers_that_are_none_are_told(tiny, capsys):
    model = build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS))
    with torch.no_grad():
        model.text.fc1.bias[0] = torch.inf
    save_tiny(tiny, model)
    assert said(tiny.root / "train/model.pt", capsys)["health"] == "NOT FINITE"


def test_damage_is_one_line(tiny):
    for name in ("shards/00000.tar", "bags/00000.npz", "manifest/00000.parquet", "train/model.pt"):
        path = tiny.root / name
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(ValueError, match=path.name):
            info.describe(path)


def test_files_of_others_are_refused(tmp_path):
    write_text(tmp_path / "a.txt", "some words\n")
    write_json(tmp_path / "a.json", [1, 2])
    write_text(tmp_path / "a.tsv", "x\ty\n")
    write_text(tmp_path / "a.jsonl", "{")
    torch.save({"a": 1}, tmp_path / "a.pt")
    for name in ("a.txt", "a.json", "a.tsv", "a.jsonl", "a.pt"):
        with pytest.raises(ValueError, match=name):
            info.describe(tmp_path / name)
    write_text(tmp_path / "a.mp4", "x")
    with pytest.raises(ValueError, match=r"known: \.tar"):
        info.describe(tmp_path / "a.mp4")
    with pytest.raises(FileNotFoundError, match="is no file"):
        info.describe(tmp_path / "nothing.tar")


@pytest.mark.parametrize(
    "text", ['{"format": "x", "protocol": "a"}', '{"format": "x", "model": 1}']
)
def test_json_with_other_keys_is_none_of_ours(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json is damaged, or none of ours"):
        info.describe(tmp_path / "a.json")
