"""Retrieval on held-out clips: which rows a clip owns, ranks by hand, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.formats.files import sha256_of_file, write_csv, write_json
from pipeline.formats.recipe import PRESETS, Sampling
from pipeline.formats.vocabulary import write_vocabulary
from tests.synthetic_bags import train_settings
from tests.tiny_results import FEATURE_DIM, NUM_FRAMES, RECIPE, WORDS, TinyResults, make_results
from trainer import evaluate
from trainer.model import build_model, load_model, save_model
from trainer.protocol import MAX_VAL_PAIRS, read_test_rows, rows_of_span

TRAIN = train_settings(
    seed=0, embedding_dim=6, word_dim=5, text_hidden=7, temperature=0.07, learn_temperature=False
)
LIST = [
    ("a.1", 0.0, 2.0, "cut the onion"),
    ("b", 1.0, 4.0, "fry the rice"),
    ("c", 3.1, 3.2, "boil water"),  # between two middles: the nearest row alone
    ("c", 4.0, 6.0, "cut the onion"),
]


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model of random weights and a list of test clips."""
    made = make_results(tmp_path)
    model = build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS))
    save_tiny(made, model)
    write_list(made, LIST)
    return made


def save_tiny(tiny: TinyResults, model, *, words: list[str] = WORDS, recipe: dict | None = None):
    """Write model.pt."""
    recipe = recipe or RECIPE.to_dict()
    path = tiny.root / "train/model.pt"
    save_model(path, model, vocabulary=words, recipe=recipe, step=7, max_caption_words=5)


def write_list(tiny: TinyResults, rows: list[tuple]) -> Path:
    """Write the list with its columns in another order and one more beside them."""
    path = tiny.root / "list.csv"
    shuffled = [(text, end, "x", start, video_id) for video_id, start, end, text in rows]
    write_csv(path, ["text", "end", "note", "start", "video_id"], shuffled)
    return path


def run_evaluate(tiny: TinyResults, clips: str | None = "list", max_missing: float = 0.1) -> dict:
    """Run the stage as the workflow does."""
    root = tiny.root
    path = str(root / "list.csv") if clips == "list" else clips
    write_json(root / "settings/evaluate.json", {"clips": path, "max_missing": max_missing})
    places = {
        "model": "train/model.pt", "settings": "settings/evaluate.json", "plan": "plan",
        "bags": "bags", "shards": "shards", "vocabulary": "vocabulary.txt",
        "output": "evaluate/retrieval.json",
    }  # fmt: skip
    evaluate.main([f"--{name}={root / place}" for name, place in places.items()])
    return json.loads((root / "evaluate/retrieval.json").read_text())


def independent_similarities(tiny: TinyResults, rows: list[np.ndarray], texts: list[str]):
    """Texts by clips, one at a time, from the model's weights with numpy alone."""
    _, content = load_model(tiny.root / "train/model.pt")
    state = torch.load(tiny.root / "train/model.pt", weights_only=True)["state"]
    weights = {name: value.double().numpy() for name, value in state.items()}
    ids = {word: i for i, word in enumerate(content["vocabulary"], start=1)}

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x)

    def clip(x: np.ndarray) -> np.ndarray:
        pooled = x.astype(np.float64).mean(axis=0)
        return unit(weights["video.project.weight"] @ pooled + weights["video.project.bias"])

    def text(words: str) -> np.ndarray:
        vectors = [weights["text.words.weight"][ids[w]] for w in words.split() if w in ids]
        hidden = [weights["text.fc1.weight"] @ v + weights["text.fc1.bias"] for v in vectors]
        best = np.maximum(np.max(hidden, axis=0), 0)
        return unit(weights["text.fc2.weight"] @ best + weights["text.fc2.bias"])

    return np.array([[text(t) @ clip(x) for x in rows] for t in texts])


def rank_by_sorting(scores: np.ndarray, own: int) -> float:
    """The middle of the places that `own`'s score takes in the sorted scores."""
    places = [k for k, score in enumerate(sorted(scores, reverse=True), 1) if score == scores[own]]
    return float(np.mean(places))


def test_ranks_equal_those_of_an_independent_computation(tiny):
    result = run_evaluate(tiny)
    x = tiny.features
    rows = [x["a.1"][0:2], x["b"][1:4], x["c"][3:4], x["c"][4:6]]
    scores = independent_similarities(tiny, rows, [text for *_, text in LIST]).round(5)
    ranks = [rank_by_sorting(scores[i], i) for i in range(4)]
    backwards = [rank_by_sorting(scores[:, i], i) for i in range(4)]
    assert [q["rank_text_to_video"] for q in result["queries"]] == ranks
    assert [q["rank_video_to_text"] for q in result["queries"]] == backwards
    assert result["text_to_video"]["R@1"] == np.mean(np.array(ranks) <= 1)
    assert result["video_to_text"]["median_rank"] == np.median(backwards)
    for i, query in enumerate(result["queries"]):
        best = int(np.argmax(scores[i]))
        assert query["hits"][0]["score"] == pytest.approx(scores[i, best], abs=1e-4)
        assert query["hits"][0]["video_id"] == LIST[best][0]


def test_equal_texts_tie_at_the_middle_rank_and_lower_the_ceiling(tiny):
    write_list(tiny, [("b", 2.0 * k, 2.0 * k + 2, "fry the rice") for k in range(3)])
    result = run_evaluate(tiny)
    assert [q["rank_video_to_text"] for q in result["queries"]] == [2.0, 2.0, 2.0]
    assert result["ceiling"]["text_to_video"]["R@1"] == pytest.approx(1 / 3)
    assert result["ceiling"]["video_to_text"] == {"R@1": 0.0, "R@5": 1.0, "R@10": 1.0}
    assert sorted(q["rank_text_to_video"] for q in result["queries"]) == [1.0, 2.0, 3.0]


def test_chance_and_provenance_stand_beside_the_numbers(tiny):
    result = run_evaluate(tiny)
    assert result["chance"] == {
        "R@1": 0.25, "R@5": 1.0, "R@10": 1.0, "median_rank": 2.5, "mean_rank": 2.5,
    }  # fmt: skip
    assert result["num_pairs"] == 4
    assert result["protocol"]["sha256"] == sha256_of_file(tiny.root / "list.csv")
    model = {"sha256": sha256_of_file(tiny.root / "train/model.pt"), "step": 7}
    assert result["model"] == model
    assert result["recipe_identity"] == RECIPE.identity


def test_the_same_run_gives_the_same_bytes(tiny):
    run_evaluate(tiny)
    first = (tiny.root / "evaluate/retrieval.json").read_bytes()
    run_evaluate(tiny)
    assert (tiny.root / "evaluate/retrieval.json").read_bytes() == first


def test_a_text_without_a_known_word_ranks_in_the_middle(tiny):
    write_list(tiny, [*LIST[:2], ("c", 0.0, 2.0, "zzz qqq")])
    result = run_evaluate(tiny)
    assert result["texts_without_known_word"] == 1
    assert result["queries"][2]["rank_text_to_video"] == 2.0


def test_missing_videos_are_listed_with_their_reasons(tiny):
    write_list(tiny, [*LIST, ("broken", 0.0, 2.0, "cut egg"), ("nobody", 0.0, 2.0, "cut egg")])
    result = run_evaluate(tiny, max_missing=0.34)
    assert result["num_pairs"] == 4
    assert result["num_rows"] == 6
    assert result["missing"]["rows"] == 2
    assert result["missing"]["videos"] == {"broken": "truncated", "nobody": "not_in_table"}


def test_too_many_missing_clips_are_refused_and_named(tiny):
    write_list(tiny, [*LIST, ("nobody", 0.0, 2.0, "cut egg")])
    with pytest.raises(ValueError, match=r"1 of 5 clips have no.*nobody \(not_in_table\)"):
        run_evaluate(tiny, max_missing=0.1)


def test_a_list_whose_videos_are_all_missing_is_refused_whatever_is_allowed(tiny):
    write_list(tiny, [("nobody", 0.0, 2.0, "cut egg")])
    with pytest.raises(ValueError, match="1 of 1 clips"):
        run_evaluate(tiny, max_missing=1.0)


def test_without_a_list_the_validation_clips_meet_their_nearest_captions(tiny):
    result = run_evaluate(tiny, clips=None)
    found = [(q["video_id"], q["start"], q["end"], q["text"]) for q in result["queries"]]
    assert found == [
        ("a.1", 0.0, 2.0, "cut the onion"),
        ("a.1", 2.0, 4.0, "fry the rice"),
        ("a.1", 4.0, 6.0, "boil water"),
        ("c", 0.0, 2.0, "peel the egg"),
        ("c", 2.0, 4.0, "mix the rice"),
        ("c", 4.0, 6.0, "cut egg"),
    ]
    x = tiny.features
    rows = [x[i][k : k + 2] for i in ("a.1", "c") for k in (0, 2, 4)]
    scores = independent_similarities(tiny, rows, [text for *_, text in found])
    ranks = [rank_by_sorting(scores[i], i) for i in range(6)]
    assert [q["rank_text_to_video"] for q in result["queries"]] == ranks


def test_a_large_validation_split_is_thinned_to_the_same_clips_each_time(tiny, monkeypatch):
    assert MAX_VAL_PAIRS > 6
    monkeypatch.setattr("trainer.protocol.MAX_VAL_PAIRS", 4)
    first = run_evaluate(tiny, clips=None)
    assert first["num_pairs"] == 4
    assert run_evaluate(tiny, clips=None) == first


def test_no_validation_clip_is_one_clear_line(tmp_path):
    made = make_results(tmp_path, (("broken",),))
    save_tiny(made, build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS)))
    with pytest.raises(ValueError, match=r"evaluate\.clips"):
        run_evaluate(made, clips=None)


def test_a_model_of_another_vocabulary_is_refused(tiny):
    write_vocabulary(tiny.root / "vocabulary.txt", WORDS[::-1])
    with pytest.raises(ValueError, match="another vocabulary"):
        run_evaluate(tiny)


@pytest.mark.parametrize("clips", ["list", None])
def test_features_of_another_recipe_are_refused_and_the_difference_is_named(tiny, clips):
    other = replace(RECIPE, frame_size=224).to_dict()
    model = build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS))
    save_tiny(tiny, model, recipe=other)
    with pytest.raises(ValueError, match="frame_size 224 became 112"):
        run_evaluate(tiny, clips=clips)


def test_a_cut_shard_is_refused(tiny):
    tar = tiny.root / "shards/00000.tar"
    tar.write_bytes(tar.read_bytes()[:-512])
    with pytest.raises(ValueError, match=r"00000\.tar is missing or has not the size"):
        run_evaluate(tiny)


def test_a_diverged_model_is_refused_instead_of_dropping_its_rows(tiny):
    model = build_model(TRAIN, feature_dim=FEATURE_DIM, num_words=len(WORDS))
    with torch.no_grad():
        model.video.project.bias[0] = torch.nan
    save_tiny(tiny, model)
    with pytest.raises(ValueError, match="NaN or infinite"):
        run_evaluate(tiny)


def test_a_list_without_the_needed_columns_names_them_and_what_was_found(tmp_path):
    write_csv(tmp_path / "list.csv", ["video_id", "begin", "text"], [("a", 0, "cut")])
    with pytest.raises(ValueError, match="lacks the columns start, end; found video_id, begin"):
        read_test_rows(tmp_path / "list.csv")


@pytest.mark.parametrize(("start", "end"), [("x", "1"), ("2", "2"), ("nan", "3"), ("", "1")])
def test_a_time_that_is_none_is_named_with_its_line(tmp_path, start, end):
    rows = [("a", 0, 1, "cut"), ("a", start, end, "cut")]
    write_csv(tmp_path / "list.csv", ["video_id", "start", "end", "text"], rows)
    with pytest.raises(ValueError, match="line 3"):
        read_test_rows(tmp_path / "list.csv")


@pytest.mark.parametrize("sampling", [*PRESETS.values(), RECIPE.sampling])
def test_a_clip_owns_the_rows_whose_middle_lies_in_it(sampling: Sampling):
    recipe = replace(RECIPE, sampling=sampling)
    starts, stops = sampling.spans(10 * NUM_FRAMES)
    rng = np.random.default_rng(1)
    for start in rng.uniform(0, 12, 50):
        end = start + rng.uniform(0.05, 5)
        inside = [t for t in range(len(starts)) if start <= (starts[t] + stops[t]) / 2 < end]
        distance = np.abs((starts + stops) / 2 - (start + end) / 2)
        first, count = rows_of_span(recipe, 10 * NUM_FRAMES, start, end)
        if inside:
            assert list(range(first, first + count)) == inside
        else:
            assert count == 1
            assert distance[first] == distance.min()
