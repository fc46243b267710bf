"""What is tested on: which rows a clip owns, which videos are missing, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.formats.files import write_csv
from pipeline.formats.recipe import PRESETS, Sampling
from tests.tiny_model import (
    LIST,
    TRAIN,
    independent_similarities,
    rank_by_sorting,
    run_evaluate,
    save_tiny,
    write_list,
)
from tests.tiny_results import FEATURE_DIM, NUM_FRAMES, RECIPE, WORDS, make_results
from trainer.model import build_model
from trainer.protocol import MAX_VAL_PAIRS, rows_of_span, window_rows, window_starts


def test_missing_videos_are_listed_with_their_reasons(tiny):
    write_list(tiny, [*LIST, ("broken", 0.0, 2.0, "cut egg"), ("nobody", 0.0, 2.0, "cut egg")])
    result = run_evaluate(tiny, max_missing=0.34)
    assert result["num_pairs"] == 4
    assert result["num_rows"] == 6
    assert result["missing"]["rows"] == 2
    assert result["missing"]["videos"] == {"broken": "truncated", "nobody": "not_in_table"}


def test_clips_that_begin_where_their_video_has_ended_are_missing(tiny):
    """Scored with the last row, a truncated video would count as any other."""
    end = NUM_FRAMES / RECIPE.sampling.frame_rate
    rows = [("b", end - 0.1, end + 9.0, "cut egg"), ("c", end, end + 2.0, "cut egg")]
    write_list(tiny, [*LIST, *rows, ("a.1", 900.0, 901.0, "cut egg")])
    for windows in (None, 4):
        result = run_evaluate(tiny, max_missing=0.4, num_windows=windows)
        assert result["num_pairs"] == 5
        assert result["missing"]["rows"] == 2
        assert result["missing"]["videos"] == dict.fromkeys(("a.1", "c"), "clip_behind_its_end")
    assert result["queries"][4]["start"] == end - 0.1


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


def test_lists_of_whole_videos_take_each_from_start_to_end(tiny):
    columns = ["key", "vid_key", "video_id", "sentence"]
    rows = [("ret0", "x", "b", "fry the rice"), ("ret1", "y", "c", "cut the onion")]
    write_csv(tiny.root / "list.csv", columns, rows)
    result = run_evaluate(tiny, num_windows=3)
    spans = [(q["video_id"], q["start"], q["end"]) for q in result["queries"]]
    assert spans == [("b", 0.0, 6.0), ("c", 0.0, 6.0)]


# By hand, for windows of 1 s and a feature row each second: 6 rows.
GOLDEN_WINDOWS = [
    ((1.0, 5.0), [1.0, 1.8666667, 2.7333333, 3.6], (1, 2, 3, 4)),
    ((0.2, 2.7), [0.2, 0.5666667, 0.9333333, 1.3], (0, 1, 1, 1)),
    ((3.4, 4.0), [3.4, 3.4, 3.4, 3.4], (3, 3, 3, 3)),  # shorter than a window
    ((3.4, 4.7), [3.4, 3.4, 3.4, 3.4], (3, 3, 3, 3)),  # shorter than a window and what is spared
    ((4.5, 9.0), [4.5, 5.5333333, 6.5666667, 7.6], (5, 5, 5, 5)),  # reaches beyond the video
]


@pytest.mark.parametrize(("span", "starts", "rows"), GOLDEN_WINDOWS)
def test_windows_are_spread_evenly_and_take_the_nearest_row(span, starts, rows):
    assert window_starts(*span, 1.0, 4) == pytest.approx(starts)
    assert window_rows(RECIPE, 6, *span, 4) == rows


def reference_starts(start: float, end: float, frames: int, rate: float, num: int) -> list[float]:
    """The reference's rule: from the start to `end - num_sec - 0.4`, never before the start."""
    last = end - frames / rate - 0.4
    if last < start:
        last = start
    found = []
    for window in range(num):
        found.append(start + (last - start) * window / (num - 1))
    return found


@pytest.mark.parametrize("num", [4, 10])
def test_windows_begin_where_the_reference_places_them(num):
    """YouCook2 and MSR-VTT at its 32 frames, 10 a second; and which row each then takes."""
    sampling = PRESETS["milnce-3.2s"]
    assert (sampling.frames, sampling.frame_rate) == (32, 10)
    random = np.random.default_rng(4)
    for start in random.uniform(0, 300, 200):
        end = start + random.uniform(0.5, 60)
        expected = reference_starts(start, end, 32, 10.0, num)
        assert window_starts(start, end, 3.2, num) == pytest.approx(expected, abs=1e-9)
        nearest = [min(range(200), key=lambda row, t=t: abs(3.2 * row - t)) for t in expected]
        assert window_rows(replace(RECIPE, sampling=sampling), 200, start, end, num) == tuple(
            nearest
        )


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
