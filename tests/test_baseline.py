"""The frozen encoder beside the model: its own joint space against a literal loop, and refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.formats.files import sha256_of_file, write_text
from tests.tiny_model import LIST, TRAIN, run_evaluate, save_tiny, write_list
from tests.tiny_results import FEATURE_DIM, RECIPE, WORDS, TinyResults, make_results
from trainer.baseline import MAX_WORDS, EncoderSpace, untrained
from trainer.model import build_model

DIM, HIDDEN, WORD_DIM = 5, 7, 3
KNOWN = ["cut", "onion", "rice", "fry", "The"]


def text_tower() -> dict[str, torch.Tensor]:
    """A state dict like the released one's, in small; padding has a vector of its own."""
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "text_module.word_embd.weight": (len(KNOWN) + 1, WORD_DIM),
        "text_module.fc1.weight": (HIDDEN, WORD_DIM),
        "text_module.fc1.bias": (HIDDEN,),
        "text_module.fc2.weight": (DIM, HIDDEN),
        "text_module.fc2.bias": (DIM,),
        "fc.weight": (DIM, FEATURE_DIM),
        "fc.bias": (DIM,),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results whose features were made with the weights of `text_tower`."""
    torch.save({"state_dict": {f"module.{k}": v for k, v in text_tower().items()}},
               tmp_path / "weights.pth")  # fmt: skip
    write_text(tmp_path / "words.txt", "".join(f"{word}\n" for word in KNOWN))
    recipe = replace(RECIPE, weights_sha256=sha256_of_file(tmp_path / "weights.pth"))
    made = make_results(tmp_path, recipe=recipe)
    model = build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS))
    save_tiny(made, model, recipe=recipe.to_dict())
    write_list(made, LIST)
    return made


def files(tiny: TinyResults) -> dict[str, str]:
    """The two keys of the settings."""
    names = {"baseline_weights": "weights.pth", "baseline_words": "words.txt"}
    return {key: str(tiny.root / name) for key, name in names.items()}


def literal_text(state: dict, text: str) -> np.ndarray:
    """The released text module, one word after another, in float64."""
    weights = {name.split(".", 1)[-1]: value.double().numpy() for name, value in state.items()}
    ids = [KNOWN.index(w) + 1 for w in re.findall(r"[\w']+", text) if w in KNOWN]
    ids += [0] * (MAX_WORDS - len(ids))
    best = np.zeros(HIDDEN)  # ReLU's floor
    for i in ids:
        vector = weights["word_embd.weight"][i]
        best = np.maximum(best, weights["fc1.weight"] @ vector + weights["fc1.bias"])
    return weights["fc2.weight"] @ best + weights["fc2.bias"]


def test_the_joint_space_equals_a_literal_computation(tiny):
    result = run_evaluate(tiny, **files(tiny))
    state, x = text_tower(), tiny.features
    rows = [x["a.1"][0:2], x["b"][1:4], x["c"][3:4], x["c"][4:6]]
    fc_DF, fc_D = state["fc.weight"].double().numpy(), state["fc.bias"].double().numpy()
    clips = [fc_DF @ array.astype(np.float64).mean(axis=0) + fc_D for array in rows]
    texts = [literal_text(state, text) for *_, text in LIST]
    texts[2] = np.zeros(DIM)  # "boil water" has no known word
    scores = np.array([[t @ c for c in clips] for t in texts]).round(4)
    ranks = [
        float(np.sum(scores[i] > scores[i, i]) + (np.sum(scores[i] == scores[i, i]) + 1) / 2)
        for i in range(4)
    ]
    found = result["baseline"]
    assert found["name"] == "the frozen encoder's own joint space"
    assert found["text_to_video"]["mean_rank"] == np.mean(ranks)
    assert found["text_to_video"]["R@1"] == np.mean(np.array(ranks) <= 1)
    assert found["words_sha256"] == sha256_of_file(tiny.root / "words.txt")


def test_texts_that_only_the_encoder_tells_apart_do_not_tie(tiny):
    """`shallot` and `leek`: to a model that knows neither, all texts are `cut`."""
    state = text_tower()
    words = ["leek", "cut", "shallot", "garlic", "kale"]
    write_text(tiny.root / "words.txt", "".join(f"{word}\n" for word in words))
    save_tiny(
        tiny,
        build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS)),
        recipe=replace(RECIPE, weights_sha256=sha256_of_file(tiny.root / "weights.pth")).to_dict(),
    )
    texts = ["cut shallot", "cut leek", "cut kale"]
    write_list(tiny, [("b", 2.0 * k, 2.0 * k + 2, text) for k, text in enumerate(texts)])
    found = run_evaluate(tiny, **files(tiny))
    x = tiny.features["b"]
    clips = [
        state["fc.weight"].double().numpy() @ x[2 * k : 2 * k + 2].astype(np.float64).mean(axis=0)
        for k in range(3)
    ]
    space = EncoderSpace(state, words)
    ids = [space.token_ids(text) for text in texts]
    assert [len(one) for one in ids] == [2, 2, 2]
    embedded = space.embed_captions(torch.tensor(ids)).double().numpy()
    bias = state["fc.bias"].double().numpy()
    scores = np.array([[text @ (clip + bias) for text in embedded] for clip in clips])
    scores = scores.round(4)
    ranks = [(row > row[k]).sum() + ((row == row[k]).sum() + 1) / 2 for k, row in enumerate(scores)]
    assert len(set(map(tuple, scores.T.tolist()))) == 3, "the encoder tells all three apart"
    assert found["baseline"]["video_to_text"]["mean_rank"] == np.mean(ranks)


def test_features_of_the_last_layer_are_taken_as_they_are():
    space = EncoderSpace(text_tower(), KNOWN)
    features_BTF = torch.randn(2, 3, DIM)
    mask_BT = torch.tensor([[True, True, False], [True, True, True]])
    features_BTF[0, 2] = 0
    expected = torch.stack([features_BTF[0, :2].mean(dim=0), features_BTF[1].mean(dim=0)])
    assert torch.allclose(space.embed_clips(features_BTF, mask_BT), expected, atol=1e-6)
    assert space.token_ids("The cut, the rice!") == [5, 1, 3]


def test_without_those_weights_the_towers_before_training_are_the_baseline(tiny):
    before = run_evaluate(tiny)
    assert before["baseline"]["name"].startswith("a random projection")
    # The model's weights are still those of its seed, so both must agree.
    for key in ("text_to_video", "video_to_text", "interval"):
        assert before["baseline"][key] == before[key]
    trained = build_model(replace(TRAIN, seed=5), feature_dim=FEATURE_DIM, num_words=len(WORDS))
    trained.settings = TRAIN
    recipe = replace(RECIPE, weights_sha256=sha256_of_file(tiny.root / "weights.pth"))
    save_tiny(tiny, trained, recipe=recipe.to_dict())
    after = run_evaluate(tiny)
    assert after["baseline"] == before["baseline"]
    assert after["queries"] != before["queries"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "layer"}, {"norm": "batch", "video_pool": "attention"}, {"padding_in_max": True}],
)
def test_the_untrained_towers_are_those_of_the_seed_whatever_was_learned(changes):
    sizes = {"feature_dim": FEATURE_DIM, "num_words": len(WORDS), "max_caption_words": 5}
    model = build_model(replace(TRAIN, **changes), **sizes)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)
    fresh = untrained(model)
    assert not fresh.training
    assert fresh.text.padded_to == model.text.padded_to
    found = fresh.state_dict()
    assert found.keys() == first.keys()
    assert all(torch.equal(value, found[name]) for name, value in first.items())


def test_weights_of_other_features_are_refused(tiny):
    state = text_tower()
    torch.save({**state, "fc.bias": state["fc.bias"] + 1}, tiny.root / "weights.pth")
    with pytest.raises(ValueError, match="the features were made with"):
        run_evaluate(tiny, **files(tiny))


def test_words_without_vectors_and_missing_files_are_refused(tiny):
    write_text(tiny.root / "words.txt", "a b c d e f g h")
    with pytest.raises(ValueError, match=r"has 8 words, .* 6 vectors"):
        run_evaluate(tiny, **files(tiny))
    (tiny.root / "words.txt").unlink()
    with pytest.raises(FileNotFoundError, match="baseline_words"):
        run_evaluate(tiny, **files(tiny))


def test_one_file_without_the_other_is_refused(tiny):
    with pytest.raises(ValueError, match="both or not at all"):
        run_evaluate(tiny, baseline_weights=str(tiny.root / "weights.pth"))


def test_words_may_be_an_array_of_strings_but_no_pickle(tiny):
    np.save(tiny.root / "words.npy", np.array(KNOWN))
    given = files(tiny) | {"baseline_words": str(tiny.root / "words.npy")}
    listed = run_evaluate(tiny, **files(tiny))["baseline"]
    saved = run_evaluate(tiny, **given)["baseline"]
    assert saved["text_to_video"] == listed["text_to_video"]
    np.save(tiny.root / "words.npy", np.array(KNOWN, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="no array of plain strings"):
        run_evaluate(tiny, **given)
