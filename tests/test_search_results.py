"""What is told of a clip that a search found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_model import make_tested, run_search
from tests.tiny_results import TEXTS, TinyResults


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results with a model of random weights."""
    return make_tested(tmp_path)


def test_a_hit_tells_the_captions_nearest_to_it(tiny):
    hits = run_search(tiny, "rice")["hits"]
    (hit,) = [h for h in hits if (h["video_id"], h["start"]) == ("c", 2.0)]
    assert [c["text"] for c in hit["captions"]] == [TEXTS[4], TEXTS[3]]  # then the earlier row
    assert hit["captions"][0] == {"start": 2.0, "end": 4.0, "text": "mix the rice"}
