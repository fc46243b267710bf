"""Towers: distinct words equal the plain form, padding never counts, model.pt round trip."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch
from torch import nn

from tests.synthetic_bags import FEATURE_DIM, RECIPE, train_settings
from trainer.initial_weights import start_from
from trainer.model import (
    LOWEST_TEMPERATURE,
    TextTower,
    VideoTower,
    build_model,
    caption_words,
    load_model,
    save_model,
)

NUM_WORDS = 20


def plain_text_tower(tower: TextTower, ids_NL: torch.Tensor) -> torch.Tensor:
    """fc1 on every word, the max over the words that are not padding."""
    hidden_NLH = torch.relu(tower.fc1(tower.words(ids_NL)))
    hidden_NLH = hidden_NLH.masked_fill((ids_NL == 0)[..., None], -torch.inf)
    return tower.fc2(hidden_NLH.amax(dim=1))


def random_ids(num_captions: int = 9, length: int = 6) -> torch.Tensor:
    """Captions of 1 to `length` words, some words twice."""
    random = np.random.default_rng(2)
    ids = random.integers(1, NUM_WORDS + 1, size=(num_captions, length))
    ids[:, 1] = ids[:, 0]
    ids[np.arange(length) >= random.integers(1, length + 1, num_captions)[:, None]] = 0
    return torch.from_numpy(ids)


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


def test_padding_never_counts_in_a_caption():
    model = build_model(train_settings(), feature_dim=FEATURE_DIM, num_words=NUM_WORDS)
    with torch.no_grad():
        model.text.fc1.bias.fill_(100)  # a counted padding would win the max
        model.text.fc1.weight.mul_(-1)
    short = torch.tensor([[3, 5]])
    padded = torch.tensor([[3, 0, 5, 0, 0]])
    assert torch.equal(model.embed_captions(short), model.embed_captions(padded))


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


@pytest.mark.parametrize("pool", ["mean", "max", "attention"])
def test_a_rank_without_clips_still_gives_every_parameter_a_gradient(pool):
    settings = train_settings(video_pool=pool)
    model = build_model(settings, feature_dim=FEATURE_DIM, num_words=NUM_WORDS)
    words = caption_words(np.zeros((0, 1), np.int64))
    clips, captions, temperature = model(
        torch.zeros(0, 1, FEATURE_DIM), torch.zeros(0, 1, dtype=torch.bool), words
    )
    assert clips.shape == captions.shape == (0, 8)
    (clips.sum() + captions.sum() + 0 * temperature).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_weights_depend_on_the_seed_alone():
    def weights(seed: int) -> list[torch.Tensor]:
        model = build_model(train_settings(seed=seed), feature_dim=4, num_words=5)
        return list(model.parameters())

    torch.manual_seed(5)
    first = weights(1)
    torch.manual_seed(6)
    before = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(first, weights(1), strict=True))
    assert torch.equal(before, torch.get_rng_state())
    assert not all(torch.equal(a, b) for a, b in zip(first, weights(2), strict=True))


def test_embeddings_are_normalised_as_set():
    for normalize in (True, False):
        settings = train_settings(normalize=normalize)
        model = build_model(settings, feature_dim=4, num_words=NUM_WORDS)
        norms = model.embed_captions(random_ids()).norm(dim=1)
        assert torch.allclose(norms, torch.ones_like(norms)) is normalize


def test_a_trained_temperature_is_clamped():
    model = build_model(train_settings(), feature_dim=4, num_words=5)
    with torch.no_grad():
        model.log_temperature.fill_(-50)
    model.clamp_temperature()
    assert model.temperature.item() == pytest.approx(LOWEST_TEMPERATURE)


def saved(path, **changes):
    """A model.pt and the model in it."""
    model = build_model(train_settings(**changes), feature_dim=FEATURE_DIM, num_words=3)
    save_model(
        path, model, vocabulary=["a", "b", "c"], recipe=RECIPE.to_dict(), step=7,
        max_caption_words=5,
    )  # fmt: skip
    return model


def test_model_round_trip(tmp_path):
    model = saved(tmp_path / "model.pt")
    loaded, metadata = load_model(tmp_path / "model.pt")
    assert metadata["vocabulary"] == ["a", "b", "c"]
    assert (metadata["step"], metadata["max_caption_words"]) == (7, 5)
    assert metadata["recipe"] == RECIPE.to_dict()
    ids = torch.tensor([[1, 3]])
    assert torch.equal(model.embed_captions(ids), loaded.embed_captions(ids))


def test_a_full_disk_is_an_os_error_and_leaves_the_model_before(tmp_path):
    saved(tmp_path / "model.pt")
    before = (tmp_path / "model.pt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            saved(tmp_path / "model.pt", seed=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "model.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_cut_or_foreign_model_file_is_named(tmp_path):
    path = tmp_path / "model.pt"
    saved(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.pt is not a whole model file"):
        load_model(path)
    torch.save({"state": {}}, path)
    with pytest.raises(ValueError, match="bagpipe-model-1"):
        load_model(path)
    path.write_text("hello")
    with pytest.raises(ValueError, match="not a whole model file"):
        load_model(path)


def test_init_from_takes_weights_and_refuses_other_shapes_and_words(tmp_path):
    model = saved(tmp_path / "model.pt", seed=8)
    fresh = build_model(train_settings(), feature_dim=FEATURE_DIM, num_words=3)
    start_from(fresh, tmp_path / "model.pt", ["a", "b", "c"])
    for a, b in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="another vocabulary"):
        start_from(fresh, tmp_path / "model.pt", ["a", "b", "d"])
    other = build_model(train_settings(text_hidden=17), feature_dim=FEATURE_DIM, num_words=3)
    with pytest.raises(ValueError, match=r"has \(16, 6\) for text.fc1.weight, expected \(17, 6\)"):
        start_from(other, tmp_path / "model.pt", ["a", "b", "c"])
    saved(tmp_path / "fixed.pt", learn_temperature=False)
    start_from(fresh, tmp_path / "fixed.pt", ["a", "b", "c"])


def save_changed(path, change) -> None:
    """A whole model.pt of which `change` changes the content."""
    model = build_model(
        train_settings(), feature_dim=FEATURE_DIM, num_words=NUM_WORDS, max_caption_words=6
    )
    words = [f"w{n}" for n in range(NUM_WORDS)]
    save_model(path, model, vocabulary=words, recipe=RECIPE.to_dict(), step=1, max_caption_words=6)
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["settings"].update(embedding_dim=10**9), "another shape"),
        (lambda content: content["recipe"].update(feature_dim=10**12), "whole model file"),
        (lambda content: content["state"].popitem(), "missing, foreign or of another shape"),
        (lambda content: content.pop("vocabulary"), "whole model file: 'vocabulary'"),
        (lambda content: content.update(state=[1]), "whole model file"),
        (lambda content: content["settings"].update(lr="1"), "lr is '1', must be a number"),
    ],
)
def test_a_model_of_which_a_part_is_wrong_is_named_before_it_takes_memory(
    tmp_path, change, message
):
    save_changed(tmp_path / "model.pt", change)
    with pytest.raises(ValueError, match=rf"model\.pt.*{message}"):
        load_model(tmp_path / "model.pt")


@pytest.mark.parametrize("place", [b"PK\x06\x07", b"embedding_dim", b"text.fc1.weight", b"step"])
def test_a_model_of_which_a_byte_was_changed_is_named(tmp_path, place):
    """Torch reads such a file, and Python's zipfile raises for the first one when only asked."""
    save_changed(tmp_path / "model.pt", lambda _: None)
    data = bytearray((tmp_path / "model.pt").read_bytes())
    data[data.index(place) + 4] ^= 1
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.pt is not a whole model file"):
        load_model(tmp_path / "model.pt")
