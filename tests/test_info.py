"""What the tool says of results and models, and that damage is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.formats.files import sha256_of_file, write_csv, write_json, write_text
from pipeline.formats.order import Order, write_order
from pipeline.rejected import HEADER
from pipeline.tools import info
from tests.tiny_model import TRAIN, run_evaluate, run_search, save_tiny, write_list
from tests.tiny_results import FEATURE_DIM, WORDS
from trainer.checkpoint import save_checkpoint
from trainer.model import build_model


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
    bags = said(tiny.root / "settings/bags.json", capsys)
    assert (bags["what"], bags["anchor"]) == ("frozen section bags of the config", "caption")


def test_records_are_told_by_their_names_and_other_json_is_none_of_ours(tmp_path, capsys):
    for name, what in (
        ("quarantine.json", "what training leaves out"),
        ("start-step-00000012.json", "what a start of training ran with"),
        ("not-finite-step-7-rank-0.json", "what a step that was not finite had"),
    ):
        write_json(tmp_path / name, {"min_clips": 3})
        found = said(tmp_path / name, capsys)
        assert (found["what"].startswith(what), found["min_clips"]) == (True, "3")
    write_json(tmp_path / "package.json", {"name": "x"})
    with pytest.raises(ValueError, match="none of ours: it has no format tag"):
        info.describe(tmp_path / "package.json")


def test_what_people_read_of_a_run_is_told_too(tmp_path, capsys):
    write_order(tmp_path / "order.txt", Order(["a", "b", "c"], 2))
    found = said(tmp_path / "order.txt", capsys)
    assert (found["videos"], found["ids"]) == ("3, 2 in a shard", "a, b, c")
    rows = [
        ("a", "a.mp4", "manifest", "missing", "gone\ror not"),
        ("b", "", "encode", "timeout", ""),
    ]
    write_csv(tmp_path / "rejected.csv", HEADER, rows)
    found = said(tmp_path / "rejected.csv", capsys)
    assert (found["videos"], found["reasons"]) == ("2", "missing 1, timeout 1")


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
