"""The stage `evaluate`: what stands beside its numbers, and which models it refuses."""

from __future__ import annotations

import pytest

from pipeline.formats.files import sha256_of_file
from pipeline.formats.vocabulary import write_vocabulary
from tests.tiny_model import run_evaluate
from tests.tiny_results import RECIPE, WORDS
from trainer.settings import EvaluateSettings


def test_chance_and_provenance_stand_beside_the_numbers(tiny):
    result = run_evaluate(tiny)
    assert result["chance"] == {
        "R@1": 0.25, "R@5": 1.0, "R@10": 1.0, "median_rank": 2.5, "mean_rank": 2.5,
    }  # fmt: skip
    assert result["num_pairs"] == 4
    assert result["protocol"]["sha256"] == sha256_of_file(tiny.root / "list.csv")
    model = {"sha256": sha256_of_file(tiny.root / "train/model.pt"), "step": 7}
    assert result["model"] == model
    assert result["recipe_identity"] == RECIPE.identity


def test_the_same_run_gives_the_same_bytes(tiny):
    run_evaluate(tiny)
    first = (tiny.root / "evaluate/heldout.json").read_bytes()
    run_evaluate(tiny)
    assert (tiny.root / "evaluate/heldout.json").read_bytes() == first


def test_a_model_of_another_vocabulary_is_refused(tiny):
    write_vocabulary(tiny.root / "vocabulary.txt", WORDS[::-1])
    with pytest.raises(ValueError, match="another vocabulary"):
        run_evaluate(tiny)


def test_an_unknown_protocol_names_the_known():
    keys = {"clips": None, "max_missing": 0.1, "num_windows": None}
    settings = EvaluateSettings(
        protocols={"a": keys, "b": None}, baseline_weights=None, baseline_words=None
    )
    with pytest.raises(ValueError, match=r"'b' is not in evaluate\.protocols: a"):
        settings.protocol("b")
