"""Embeddings of clips are made once, and again for another model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tiny_model import TRAIN, run_search, save_tiny
from tests.tiny_results import FEATURE_DIM, WORDS
from trainer.clip_embeddings import embedding_files, fresh_embeddings, open_model
from trainer.model import build_model


def test_a_shards_embeddings_are_those_of_its_clips_one_by_one(tiny):
    opened = open_model(tiny.root / "train/model.pt")
    found = fresh_embeddings(opened, embedding_files(tiny.root, "00000"))
    clips = [("a.1", start) for start in (0.0, 2.0, 4.0)] + [("b", s) for s in (0.0, 2.0, 4.0)]
    assert sorted(zip(found.video_ids, found.starts, strict=True)) == clips
    for vector, video_id, start in zip(
        found.vectors_CD, found.video_ids, found.starts, strict=True
    ):
        rows = tiny.features[video_id][int(start) : int(start) + 2].astype(np.float32)
        expected = opened.model.embed_clips(torch.from_numpy(rows)[None], torch.ones(1, 2) > 0)
        assert np.allclose(vector, expected[0].numpy(), atol=1e-6)


def test_bags_that_are_missing_are_named_with_what_to_run(tiny):
    files = embedding_files(tiny.root, "00000")
    files.bags.unlink()
    with pytest.raises(FileNotFoundError, match=f"--forcerun {files.bags}"):
        fresh_embeddings(open_model(tiny.root / "train/model.pt"), files)


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
