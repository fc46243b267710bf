"""Ranks against sorting by hand: ties, equal texts, and texts without a known word."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tiny_model import (
    LIST,
    independent_similarities,
    rank_by_sorting,
    run_evaluate,
    write_list,
)
from trainer.retrieval import chance_level, rank_own


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


def test_targets_of_the_same_number_share_the_middle_of_their_ranks():
    scores = np.array([[3.0, 1, 3, 2], [0, 0, 0, 0], [5, 6, 5, 4], [1, 2, 1, 3]])
    number_N = np.array([0, 1, 0, 2])  # rows 0 and 2 are the same target
    ranks, hits = rank_own(scores, np.eye(4), number_N)
    assert ranks.tolist() == [rank_by_sorting(scores[i], i) for i in range(4)] == [1.5, 2.5, 2.5, 1]
    assert hits[0] == [(0, 3.0), (2, 3.0), (3, 2.0), (1, 1.0)]


def test_chance_is_what_every_order_gives_on_average():
    for size in (3, 8):
        found, places = chance_level(size), np.arange(1, size + 1)
        assert found["mean_rank"] == np.mean(places)
        assert found["median_rank"] == np.median(places)
        for k in (1, 5, 10):
            assert found[f"R@{k}"] == pytest.approx(np.mean(places <= k))


def test_equal_texts_tie_at_the_middle_rank_and_lower_the_ceiling(tiny):
    write_list(tiny, [("b", 2.0 * k, 2.0 * k + 2, "fry the rice") for k in range(3)])
    result = run_evaluate(tiny)
    assert [q["rank_video_to_text"] for q in result["queries"]] == [2.0, 2.0, 2.0]
    assert result["ceiling"]["text_to_video"]["R@1"] == pytest.approx(1 / 3)
    assert result["ceiling"]["video_to_text"] == {"R@1": 0.0, "R@5": 1.0, "R@10": 1.0}
    assert sorted(q["rank_text_to_video"] for q in result["queries"]) == [1.0, 2.0, 3.0]


def test_a_text_without_a_known_word_ranks_in_the_middle(tiny):
    write_list(tiny, [*LIST[:2], ("c", 0.0, 2.0, "zzz qqq")])
    result = run_evaluate(tiny)
    assert result["texts_without_known_word"] == 1
    assert result["queries"][2]["rank_text_to_video"] == 2.0
