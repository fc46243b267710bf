"""The released S3D joint space, against the reference text module written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.synthetic_bags import train_settings
from trainer.initial_weights import start, start_from
from trainer.model import build_model
from trainer.released_weights import flat, is_released

WORDS = ["cut", "onion", "the", "über", "new york", "zebra"]


def model_of(**changes):
    settings = train_settings(**({"word_dim": 3, "embedding_dim": 4} | changes))
    return build_model(settings, feature_dim=5, num_words=len(WORDS), max_caption_words=4)


def released_state() -> dict:
    """A state dict in the released form, small."""
    torch.manual_seed(2)
    return {
        "text_module.word_embd.weight": torch.randn(5, 3),
        "text_module.fc1.weight": torch.randn(16, 3),
        "text_module.fc1.bias": torch.randn(16),
        "text_module.fc2.weight": torch.randn(4, 16),
        "text_module.fc2.bias": torch.randn(4),
        "fc.weight": torch.randn(4, 5),
        "fc.bias": torch.randn(4),
        "conv1.conv1.weight": torch.randn(2, 2),
    }


RELEASED_WORDS = ["onion", "the", "cut", "rice"]


def released_text(state: dict, ids_NL: torch.Tensor) -> torch.Tensor:
    """The reference text module: fc1 on every position, padding too, max, fc2."""
    x = state["text_module.word_embd.weight"][ids_NL]
    x = functional.linear(x, state["text_module.fc1.weight"], state["text_module.fc1.bias"]).relu()
    x = x.amax(dim=1)
    return functional.linear(x, state["text_module.fc2.weight"], state["text_module.fc2.bias"])


def test_released_weights_are_told_by_their_text_module():
    state = released_state()
    wrapped = {"state_dict": {f"module.{name}": value for name, value in state.items()}}
    assert flat(wrapped).keys() == flat(state).keys() == state.keys()
    assert is_released(state)
    assert is_released(wrapped)
    assert not is_released({"conv1.conv1.weight": state["conv1.conv1.weight"]})
    assert not is_released([state])


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_released_joint_space_is_kept(wrapped, tmp_path):
    """compat: milnce = padding_in_max, no normalisation; its embeddings are the reference's."""
    state = released_state()
    content = {"state_dict": {f"module.{n}": v for n, v in state.items()}} if wrapped else state
    torch.save(content, tmp_path / "s3d.pth")
    np.save(tmp_path / "dict.npy", np.array(RELEASED_WORDS))
    settings = train_settings(
        word_dim=3, embedding_dim=4, text_hidden=16, padding_in_max=True, normalize=False,
        learn_temperature=False, temperature=1.0, positive_weight=2, exclusion="none",
        exclude_same_text=False, init_from=str(tmp_path / "s3d.pth"),
        word_list=str(tmp_path / "dict.npy"),
    )  # fmt: skip
    model = build_model(settings, feature_dim=5, num_words=3, max_caption_words=4)
    start(model, settings, ["cut", "onion", "the"])
    ours = torch.tensor([[1, 2, 0, 0], [3, 3, 1, 2], [2, 0, 0, 0]])
    theirs = torch.tensor([[3, 1, 0, 0], [2, 2, 3, 1], [1, 0, 0, 0]])
    assert torch.allclose(model.embed_captions(ours), released_text(state, theirs), atol=1e-6)
    features = torch.randn(2, 3, 5)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    clips = model.embed_clips(features, mask)
    pooled = torch.stack([features[0].mean(dim=0), features[1, 0]])
    expected = functional.linear(pooled, state["fc.weight"], state["fc.bias"])
    assert torch.allclose(clips, expected, atol=1e-6)


def test_released_weights_that_do_not_fit_are_named(tmp_path):
    path, words = tmp_path / "s3d.pth", tmp_path / "words.txt"
    torch.save(released_state(), path)
    with pytest.raises(ValueError, match="needs the words of its text module"):
        start_from(model_of(), path, WORDS)
    words.write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"has 4 words, but .* lists 2"):
        start_from(model_of(), path, WORDS, word_list=str(words))
    words.write_text("\n".join(RELEASED_WORDS))
    line = r"has \(16, 3\) for text_module.fc1.weight, expected \(17, 3\): set embedding_dim 512"
    with pytest.raises(ValueError, match=line):
        start_from(model_of(text_hidden=17), path, WORDS, word_list=str(words))
