"""Pictures of clips are found by the plan."""

from __future__ import annotations

from pipeline.report_pictures import pictures_of
from tests.tiny_results import make_results


def test_paths_of_a_results_folder_come_from_its_plan(tmp_path):
    make_results(tmp_path)
    assert pictures_of(tmp_path, {"c", "unknown"}).paths == {"c": "videos/c.mp4"}
