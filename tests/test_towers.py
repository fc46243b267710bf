"""The two towers: distinct words equal the plain form, and padding never counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.synthetic_bags import random_ids, train_settings
from trainer.model import build_model
from trainer.towers import TextTower, VideoTower, caption_words

NUM_WORDS = 20
WORDS = ["cut", "onion", "the", "über", "new york", "zebra"]


def model_of(**changes):
    settings = train_settings(**({"word_dim": 3, "embedding_dim": 4} | changes))
    return build_model(settings, feature_dim=5, num_words=len(WORDS), max_caption_words=4)


def test_frozen_words_get_no_gradient_and_stay():
    model = model_of(freeze_words=True)
    model(
        torch.zeros(1, 1, 5), torch.ones(1, 1, dtype=torch.bool), caption_words(np.array([[1, 2]]))
    )[1].sum().backward()
    assert model.text.words.weight.grad is None


def plain_text_tower(tower: TextTower, ids_NL: torch.Tensor) -> torch.Tensor:
    """fc1 on every word, the max over the words that are not padding."""
    hidden_NLH = torch.relu(tower.fc1(tower.words(ids_NL)))
    hidden_NLH = hidden_NLH.masked_fill((ids_NL == 0)[..., None], -torch.inf)
    return tower.fc2(hidden_NLH.amax(dim=1))


def test_text_tower_equals_fc1_on_every_word():
    torch.manual_seed(0)
    tower = TextTower(NUM_WORDS, 5, 7, 4).double()
    ids_NL = random_ids()
    weights = torch.randn(len(ids_NL), 4, dtype=torch.float64)
    results = []
    for forward in (lambda: tower(caption_words(ids_NL)), lambda: plain_text_tower(tower, ids_NL)):
        tower.zero_grad()
        out = forward()
        (out * weights).sum().backward()
        results.append((out.detach(), [p.grad.clone() for p in tower.parameters()]))
    (out, found), (expected_out, expected) = results
    assert torch.allclose(out, expected_out, rtol=0, atol=1e-14)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("pool", ["mean", "max", "attention"])
def test_masked_feature_rows_never_count(pool):
    torch.manual_seed(1)
    tower = VideoTower(5, 3, pool, "projection")
    features = torch.randn(2, 3, 5)
    longer = torch.cat([features, torch.full((2, 2, 5), 99.0)], dim=1)
    mask = torch.tensor([[True] * 3] * 2)
    out = tower(features, mask)
    padded = tower(longer, torch.cat([mask, torch.zeros(2, 2, dtype=torch.bool)], dim=1))
    assert torch.allclose(out, padded, atol=1e-6)


def test_pools_give_what_their_names_say():
    features, mask = torch.tensor([[[1.0, 4.0], [3.0, 2.0]]]), torch.tensor([[True, True]])
    for pool, expected in (("mean", [2.0, 3.0]), ("max", [3.0, 4.0])):
        assert VideoTower(2, 2, pool, "identity")(features, mask).tolist() == [expected]
    attention = VideoTower(2, 2, "attention", "identity")
    nn.init.zeros_(attention.attention.weight)
    assert torch.allclose(attention(features, mask), torch.tensor([[2.0, 3.0]]))


def test_identity_needs_equal_dimensions():
    with pytest.raises(ValueError, match="identity needs embedding_dim 5"):
        VideoTower(5, 3, "mean", "identity")


@pytest.mark.parametrize("padded", [False, True])
def test_what_a_tower_sees_is_equal_exactly_where_its_embeddings_are(padded):
    torch.manual_seed(0)
    model = model_of(padding_in_max=padded, text_hidden=200)
    with torch.no_grad():  # of padding too, which starts as 0
        model.text.words.weight.normal_()
        model.text.fc1.weight.normal_()
    texts = [[1, 2], [2, 1], [2, 1, 2], [1, 2, 1, 2], [1], [1, 1, 1, 1], [3, 1, 2], [1, 2, 3, 3]]
    ids_NL = np.zeros((len(texts), 4), np.int64)
    for row, ids in enumerate(texts):
        ids_NL[row, : len(ids)] = ids
    embedded_ND = model.text(caption_words(ids_NL)).detach()
    for i, one in enumerate(texts):
        for k, other in enumerate(texts):
            alike = torch.allclose(embedded_ND[i], embedded_ND[k], atol=1e-6)
            assert (model.sees(one) == model.sees(other)) == alike, (one, other)
