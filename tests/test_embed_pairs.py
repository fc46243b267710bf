"""The clips and texts of a test, embedded: windows one by one, and no number that is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_model import LIST, TRAIN, make_tested, rank_by_sorting, run_evaluate, save_tiny
from tests.tiny_results import FEATURE_DIM, WORDS, TinyResults
from trainer.model import build_model, load_model


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model of random weights and a list of test clips."""
    return make_tested(tmp_path)


def test_a_diverged_model_is_refused_instead_of_dropping_its_rows(tiny):
    model = build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS))
    with torch.no_grad():
        model.video.project.bias[0] = torch.nan
    save_tiny(tiny, model)
    with pytest.raises(ValueError, match="NaN or infinite"):
        run_evaluate(tiny)


def test_windows_are_embedded_one_by_one_and_averaged(tiny):
    result = run_evaluate(tiny, num_windows=3)
    model, _ = load_model(tiny.root / "train/model.pt")
    ids = {word: i for i, word in enumerate(WORDS, start=1)}
    clips, texts = [], []
    for video_id, start, end, text in LIST:
        windows = [
            tiny.features[video_id][min(5, int(second + 0.5))]
            for second in np.linspace(start, max(start, end - 1.0), 3)
        ]
        each = [
            model.embed_clips(torch.tensor(w.astype(np.float32))[None, None], torch.ones(1, 1) > 0)
            for w in windows
        ]
        mean = torch.stack(each).mean(dim=0)[0]
        clips.append((mean / mean.norm()).numpy())
        texts.append(model.embed_captions(torch.tensor([[ids[w] for w in text.split()]]))[0])
    scores = np.stack(texts).round(7) @ np.stack(clips).T
    ranks = [rank_by_sorting(scores[i].round(5), i) for i in range(4)]
    assert [q["rank_text_to_video"] for q in result["queries"]] == ranks
    assert result["queries"][0]["hits"][0]["score"] == pytest.approx(scores[0].max(), abs=1e-5)
    assert "3 windows of 1 s" in result["protocol"]["windows"]
