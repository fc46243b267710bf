"""The clean caption table: round trips, order, equal bytes."""

import pytest

from pipeline.formats.captions import Caption, read_captions, write_captions

CAPTIONS = [
    Caption("b", 1.5, 2.0, "später"),
    Caption("a", 3.0, 4.0, "second"),
    Caption("a", 1.0, 9.0, "first"),
    Caption("a", 1.0, 2.0, "before the first"),
]


def test_captions_come_back_sorted_with_their_counts(tmp_path):
    write_captions(tmp_path / "c.parquet", CAPTIONS, {"read": 5, "kept": 4})
    captions, counts = read_captions(tmp_path / "c.parquet")
    assert captions == [CAPTIONS[3], CAPTIONS[2], CAPTIONS[1], CAPTIONS[0]]
    assert counts == {"read": 5, "kept": 4}


def test_the_same_captions_in_another_order_give_the_same_bytes(tmp_path):
    write_captions(tmp_path / "1", CAPTIONS, {"kept": 4, "read": 5})
    write_captions(tmp_path / "2", CAPTIONS[::-1], {"read": 5, "kept": 4})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_no_captions_are_a_table_too(tmp_path):
    write_captions(tmp_path / "c.parquet", [], {})
    assert read_captions(tmp_path / "c.parquet") == ([], {})


def test_a_cut_table_is_refused(tmp_path):
    write_captions(tmp_path / "c.parquet", CAPTIONS, {})
    (tmp_path / "c.parquet").write_bytes((tmp_path / "c.parquet").read_bytes()[:-5])
    with pytest.raises(ValueError, match="not a whole parquet file"):
        read_captions(tmp_path / "c.parquet")
