"""What training starts from: the content of files, and the weights of another model."""

from __future__ import annotations

import pytest
import torch

from tests.synthetic_bags import FEATURE_DIM, saved_model, train_settings
from trainer.initial_weights import digests, start_from
from trainer.model import (
    build_model,
)

WORDS = ["cut", "onion", "the", "über", "new york", "zebra"]


def test_the_content_of_every_file_decides_the_run(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    settings = train_settings(word_vectors=str(tmp_path / "a.txt"))
    before = digests(settings)
    assert before["init_from_sha256"] is None
    (tmp_path / "a.txt").write_text("b")
    assert digests(settings) != before


def test_init_from_takes_weights_and_refuses_other_shapes_and_words(tmp_path):
    model = saved_model(tmp_path / "model.pt", seed=8)
    fresh = build_model(train_settings(), feature_dim=FEATURE_DIM, num_words=3)
    start_from(fresh, tmp_path / "model.pt", ["a", "b", "c"])
    for a, b in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="another vocabulary"):
        start_from(fresh, tmp_path / "model.pt", ["a", "b", "d"])
    other = build_model(train_settings(text_hidden=17), feature_dim=FEATURE_DIM, num_words=3)
    with pytest.raises(ValueError, match=r"has \(16, 6\) for text.fc1.weight, expected \(17, 6\)"):
        start_from(other, tmp_path / "model.pt", ["a", "b", "c"])
    saved_model(tmp_path / "fixed.pt", learn_temperature=False)
    start_from(fresh, tmp_path / "fixed.pt", ["a", "b", "c"])
