"""Embeddings of clips are made once, and again for another model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_model import TRAIN, make_tested, run_search, save_tiny
from tests.tiny_results import FEATURE_DIM, WORDS, TinyResults
from trainer.model import build_model


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model of random weights."""
    return make_tested(tmp_path)


def test_embeddings_are_made_once_and_again_for_another_model(tiny, caplog):
    caplog.set_level("INFO")
    run_search(tiny, "egg")
    assert caplog.text.count("embedding the clips") == 2
    run_search(tiny, "rice")
    assert caplog.text.count("embedding the clips") == 2
    other = build_model(replace(TRAIN, seed=1), feature_dim=FEATURE_DIM, num_words=len(WORDS))
    save_tiny(tiny, other)
    run_search(tiny, "rice")
    assert caplog.text.count("embedding the clips") == 4


def test_a_folder_that_is_not_ours_to_write_is_searched_all_the_same(tiny, caplog, monkeypatch):
    def refused(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("trainer.clip_embeddings.write_embeddings", refused)
    found = run_search(tiny, "egg")
    assert "they are not kept ([Errno 13] Permission denied: " in caplog.text
    assert not (tiny.root / "embeddings").exists()
    monkeypatch.undo()
    assert run_search(tiny, "egg")["hits"] == found["hits"]
