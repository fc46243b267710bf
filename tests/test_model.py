"""The model: weights of the seed alone, normalised embeddings, and the round trip of model.pt."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch

from tests.synthetic_bags import FEATURE_DIM, RECIPE, random_ids, saved_model, train_settings
from trainer.model import (
    LOWEST_TEMPERATURE,
    build_model,
    caption_words,
    load_model,
    save_model,
)

NUM_WORDS = 20


def test_padding_never_counts_in_a_caption():
    model = build_model(train_settings(), feature_dim=FEATURE_DIM, num_words=NUM_WORDS)
    with torch.no_grad():
        model.text.fc1.bias.fill_(100)  # a counted padding would win the max
        model.text.fc1.weight.mul_(-1)
    short = torch.tensor([[3, 5]])
    padded = torch.tensor([[3, 0, 5, 0, 0]])
    assert torch.equal(model.embed_captions(short), model.embed_captions(padded))


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


def test_model_round_trip(tmp_path):
    model = saved_model(tmp_path / "model.pt")
    loaded, metadata = load_model(tmp_path / "model.pt")
    assert metadata["vocabulary"] == ["a", "b", "c"]
    assert (metadata["step"], metadata["max_caption_words"]) == (7, 5)
    assert metadata["recipe"] == RECIPE.to_dict()
    ids = torch.tensor([[1, 3]])
    assert torch.equal(model.embed_captions(ids), loaded.embed_captions(ids))


def test_a_model_whose_attention_has_a_bias_is_read_without_it(tmp_path):
    """As models were before: a softmax is the same whatever is added to all its scores."""
    path = tmp_path / "model.pt"
    model = saved_model(path, video_pool="attention", normalize=False)
    content = torch.load(path, weights_only=True)
    content["state"]["video.attention.bias"] = torch.tensor([3.7])
    torch.save(content, path)
    loaded, _ = load_model(path)
    torch.manual_seed(0)
    rows_BTF, mask_BT = torch.randn(5, 6, FEATURE_DIM), torch.arange(6) < torch.tensor([[3]] * 5)
    scores_BT1 = rows_BTF @ model.video.attention.weight.T + 3.7
    weights_BT1 = scores_BT1.masked_fill(~mask_BT[..., None], -torch.inf).softmax(dim=1)
    expected = model.video.project((rows_BTF * weights_BT1).sum(dim=1))
    assert torch.allclose(loaded.embed_clips(rows_BTF, mask_BT), expected, atol=1e-6)


def test_a_full_disk_is_an_os_error_and_leaves_the_model_before(tmp_path):
    saved_model(tmp_path / "model.pt")
    before = (tmp_path / "model.pt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            saved_model(tmp_path / "model.pt", seed=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "model.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_cut_or_foreign_model_file_is_named(tmp_path):
    path = tmp_path / "model.pt"
    saved_model(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.pt is not a whole model file"):
        load_model(path)
    torch.save({"state": {}}, path)
    with pytest.raises(ValueError, match="bagpipe-model-1"):
        load_model(path)
    path.write_text("hello")
    with pytest.raises(ValueError, match="not a whole model file"):
        load_model(path)


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
