"""The clips and texts of a test, embedded: windows one by one, and no number that is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_model import LIST, TRAIN, rank_by_sorting, run_evaluate, save_tiny
from tests.tiny_results import FEATURE_DIM, RECIPE, WORDS, TinyResults
from trainer.clip_list import TestRow
from trainer.embed_pairs import embed_clips, embed_texts
from trainer.model import build_model, load_model
from trainer.protocol import Pair, pairs_of_list


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
            for second in np.linspace(start, max(start, end - 1.0 - 0.4), 3)
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


class Sums:
    """Stands in for a model: the sum of a clip's rows; a text's words, summed and counted."""

    def embed_clips(self, features_BTF: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        return (features_BTF * mask_BT[..., None]).sum(dim=1)

    def embed_captions(self, ids_NL: torch.Tensor) -> torch.Tensor:
        return torch.stack([ids_NL.sum(dim=1), (ids_NL > 0).sum(dim=1) + 100], dim=1).float()


def pairs_in(tiny: TinyResults) -> list[Pair]:
    """The pairs of `LIST`."""
    rows = [TestRow(*row) for row in LIST]
    vocabulary = {word: i for i, word in enumerate(WORDS, start=1)}
    names = ["00000", "00001"]
    return pairs_of_list(rows, tiny.root / "shards", names, vocabulary, 5, RECIPE).pairs


@pytest.mark.parametrize("batch", [1, 3, 256])
def test_clips_are_their_own_rows_whatever_shares_their_batch(tiny, monkeypatch, batch):
    monkeypatch.setattr("trainer.embed_pairs.BATCH", batch)
    found = embed_clips(
        Sums(), pairs_in(tiny), tiny.root / "shards", feature_dim=FEATURE_DIM, normalized=False
    )
    x = {name: value.astype(np.float32) for name, value in tiny.features.items()}
    rows = [x["a.1"][0:2], x["b"][1:4], x["c"][3:4], x["c"][4:6]]
    np.testing.assert_allclose(found, [own.sum(axis=0) for own in rows], rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 3, 256])
def test_texts_are_their_words_and_one_without_any_is_0(tiny, monkeypatch, batch):
    monkeypatch.setattr("trainer.embed_pairs.BATCH", batch)
    found = embed_texts(Sums(), [[3, 4], [], [9], [1, 1, 1]], pairs_in(tiny))
    assert found.tolist() == [[7, 102], [0, 0], [9, 101], [3, 103]]


def test_the_first_text_that_is_no_number_is_named(tiny):
    class Diverged(Sums):
        def embed_captions(self, ids_NL: torch.Tensor) -> torch.Tensor:
            return super().embed_captions(ids_NL) / (ids_NL[:, :1] != 9)

    line = "text embeddings of 2 of 4 pairs are NaN or infinite, first at video 'b'"
    with pytest.raises(ValueError, match=line):
        embed_texts(Diverged(), [[3], [9], [9], [1]], pairs_in(tiny))
