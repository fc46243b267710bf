"""Retrieval on held-out clips: which rows a clip owns, ranks by hand, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
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
from trainer.clip_list import PUBLISHED_PAIRS, read_test_rows
from trainer.model import build_model, load_model, save_model
from trainer.protocol import MAX_VAL_PAIRS, rows_of_span, window_rows, window_starts
from trainer.retrieval import ceilings
from trainer.settings import EvaluateSettings

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


def run_evaluate(
    tiny: TinyResults,
    clips: str | None = "list",
    max_missing: float = 0.1,
    *,
    name: str = "heldout",
    num_windows: int | None = None,
    **baseline: str,
) -> dict:
    """Run the stage as the workflow does."""
    root = tiny.root
    path = str(root / "list.csv") if clips == "list" else clips
    chosen = {"clips": path, "max_missing": max_missing, "num_windows": num_windows}
    settings = {"protocols": {name: chosen}, "baseline_weights": None, "baseline_words": None}
    write_json(root / "settings/evaluate.json", settings | baseline)
    places = {
        "model": "train/model.pt", "settings": "settings/evaluate.json", "plan": "plan",
        "bags": "bags", "shards": "shards", "vocabulary": "vocabulary.txt",
        "output": f"evaluate/{name}.json",
    }  # fmt: skip
    options = [f"--{option}={root / place}" for option, place in places.items()]
    evaluate.main([f"--protocol={name}", *options])
    return json.loads((root / f"evaluate/{name}.json").read_text())


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
    first = (tiny.root / "evaluate/heldout.json").read_bytes()
    run_evaluate(tiny)
    assert (tiny.root / "evaluate/heldout.json").read_bytes() == first


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
    with pytest.raises(ValueError, match=r"name a CSV in the protocol's clips"):
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


def write_rows(path: Path, columns: list[str], *rows: tuple) -> Path:
    """Write a list of test clips."""
    write_csv(path, columns, rows)
    return path


@pytest.mark.parametrize(
    ("columns", "absent"),
    [
        (["video_id", "begin", "text"], None),
        (["video_id", "start", "text"], "end"),
        (["id", "start", "end", "text"], "video_id"),
        (["video_id", "start", "end", "words"], "text"),
        (["key", "sentence"], "video_id"),
    ],
)
def test_a_list_without_the_needed_columns_names_them_and_what_was_found(tmp_path, columns, absent):
    path = write_rows(tmp_path / "list.csv", columns, tuple(range(1, len(columns) + 1)))
    if absent is None:  # whole videos: `begin` is a column like any other
        assert read_test_rows(path)[0].end == np.inf
        return
    found = ", ".join(columns)
    with pytest.raises(ValueError, match=f"lacks the columns {absent}; found {found}; needed"):
        read_test_rows(path)


def test_lists_of_whole_videos_take_each_from_start_to_end(tiny):
    columns = ["key", "vid_key", "video_id", "sentence"]
    rows = [("ret0", "x", "b", "fry the rice"), ("ret1", "y", "c", "cut the onion")]
    write_csv(tiny.root / "list.csv", columns, rows)
    result = run_evaluate(tiny, num_windows=3)
    spans = [(q["video_id"], q["start"], q["end"]) for q in result["queries"]]
    assert spans == [("b", 0.0, 6.0), ("c", 0.0, 6.0)]


# By hand, for windows of 1 s and a feature row each second: 6 rows.
GOLDEN_WINDOWS = [
    ((1.0, 5.0), [1.0, 2.0, 3.0, 4.0], (1, 2, 3, 4)),
    ((0.2, 2.7), [0.2, 0.7, 1.2, 1.7], (0, 1, 1, 2)),
    ((3.4, 4.0), [3.4, 3.4, 3.4, 3.4], (3, 3, 3, 3)),  # shorter than a window
    ((4.5, 9.0), [4.5, 5.6666667, 6.8333333, 8.0], (5, 5, 5, 5)),  # reaches beyond the video
]


@pytest.mark.parametrize(("span", "starts", "rows"), GOLDEN_WINDOWS)
def test_windows_are_spread_evenly_and_take_the_nearest_row(span, starts, rows):
    assert window_starts(*span, 1.0, 4) == pytest.approx(starts)
    assert window_rows(RECIPE, 6, *span, 4) == rows


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


def test_a_published_name_with_another_list_is_refused(tiny):
    with pytest.raises(ValueError, match="4 clips, the published list of youcook2 has 3350"):
        run_evaluate(tiny, name="youcook2")
    with pytest.raises(ValueError, match="published list of msrvtt has 1000"):
        run_evaluate(tiny, clips=None, name="msrvtt")


def test_a_published_list_tells_how_many_of_its_pairs_were_tested(tiny, monkeypatch):
    monkeypatch.setitem(PUBLISHED_PAIRS, "youcook2", 5)
    write_list(tiny, [*LIST, ("nobody", 0.0, 2.0, "cut egg")])
    result = run_evaluate(tiny, name="youcook2", max_missing=0.2)
    assert result["protocol"]["published_pairs"] == 5
    assert result["num_pairs"] == 4
    assert run_evaluate(tiny, name="mine", max_missing=0.2)["protocol"]["published_pairs"] is None


def test_an_unknown_protocol_names_the_known():
    keys = {"clips": None, "max_missing": 0.1, "num_windows": None}
    settings = EvaluateSettings(
        protocols={"a": keys, "b": None}, baseline_weights=None, baseline_words=None
    )
    with pytest.raises(ValueError, match=r"'b' is not in evaluate\.protocols: a"):
        settings.protocol("b")


@pytest.mark.real
def test_the_published_lists_read_whole(real_data):
    folder = real_data / "captions/milnce_csv"
    youcook = read_test_rows(folder / "validation_youcook.csv")
    assert len(youcook) == PUBLISHED_PAIRS["youcook2"]
    assert youcook[0].video_id == "xHr8X2Wpmno"
    assert (youcook[0].start, youcook[0].end) == (47.0, 60.0)
    counts = Counter(row.text for row in youcook)
    # 141 of its rows share their text with another one.
    assert sum(count for count in counts.values() if count > 1) == 141
    limits = ceilings(np.array([counts[row.text] for row in youcook]))
    assert limits["text_to_video"]["R@1"] == pytest.approx(len(counts) / len(youcook))
    assert limits["text_to_video"]["R@1"] == pytest.approx(0.977, abs=5e-4)
    msrvtt = read_test_rows(folder / "msrvtt_test.csv")
    assert len(msrvtt) == PUBLISHED_PAIRS["msrvtt"]
    assert msrvtt[1].text == "a little girl does gymnastics"


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
