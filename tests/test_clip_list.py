"""Lists of test clips: their columns, their times, and the published ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.files import write_csv
from tests.tiny_model import LIST, run_evaluate, write_list
from trainer.clip_list import PUBLISHED_PAIRS, read_test_rows
from trainer.retrieval import ceilings


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


def test_a_row_with_more_fields_than_the_header_is_refused_by_line(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text("video_id,start,end,text\na,1,2,stir\nb,1,2,salt, oil\n")
    with pytest.raises(ValueError, match=r"list\.csv, line 3: more fields .*, as 'oil'"):
        read_test_rows(path)


@pytest.mark.parametrize("end", ["", 'c,1,2,salt"\n'])
def test_a_quote_left_open_swallows_no_test_clip(tmp_path, end):
    path = tmp_path / "list.csv"
    path.write_text('video_id,start,end,text\na,1,2,"stir\nb,1,2,fold\n' + end)
    with pytest.raises(
        ValueError, match=r"list\.csv(, line 4: a text over| is not a UTF-8 CSV file)"
    ):
        read_test_rows(path)
