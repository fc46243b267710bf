"""Ranks against sorting by hand: ties, equal texts, and texts without a known word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny_model import (
    LIST,
    independent_similarities,
    make_tested,
    rank_by_sorting,
    run_evaluate,
    write_list,
)
from tests.tiny_results import TinyResults


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model of random weights and a list of test clips."""
    return make_tested(tmp_path)


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


def test_a_text_without_a_known_word_ranks_in_the_middle(tiny):
    write_list(tiny, [*LIST[:2], ("c", 0.0, 2.0, "zzz qqq")])
    result = run_evaluate(tiny)
    assert result["texts_without_known_word"] == 1
    assert result["queries"][2]["rank_text_to_video"] == 2.0
