"""The summary of all captions: a round trip, and other files refused."""

import pytest

from pipeline.formats.caption_summary import (
    CaptionSummary,
    read_caption_summary,
    write_caption_summary,
)
from pipeline.formats.files import write_json


def test_the_summary_round_trips_and_refuses_other_files(tmp_path):
    summary = CaptionSummary(
        shards={"00000": "ab"}, counts={"kept": 1}, videos=1, captions=1, hours=0.5
    )
    write_caption_summary(tmp_path / "s.json", summary)
    assert read_caption_summary(tmp_path / "s.json") == summary
    for value in ([], {"version": "captions-summary-1"}, {"shards": {}}):
        write_json(tmp_path / "s.json", value)
        with pytest.raises(ValueError, match="captions-summary-1 file"):
            read_caption_summary(tmp_path / "s.json")
