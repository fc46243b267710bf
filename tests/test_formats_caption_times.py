"""Whatever a time is written like, it is one number of seconds, or none."""

import math

import pytest

from pipeline.formats.caption_times import parse_time


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (3, 3.0), (2.5, 2.5), ("2.5", 2.5), (" 7 ", 7.0), ("1e2", 100.0), ("-4", -4.0),
        ("00:01:02.5", 62.5), ("1:02", 62.0), ("01:00:00,250", 3600.25),
        ("75:12", 4512.0), ("100:00.5", 6000.5), ("1:75:00", None), ("10:60", None),
        (None, None), ("", None), ("soon", None), ("nan", None), (math.nan, None), ("inf", None),
        (-math.inf, None), ("1_0", None), (True, None), ("1:99", None), ([1], None),
        ("9" * 400, None), (10**400, None), ("9" * 5000 + ":00:00", None), (1e300, None),
        ("1" * 9 + ":00:00", None),
        ("0,5", 0.5), ("2,75", 2.75), (".5", 0.5), ("1,2,3", None), ("-00:00:03,000", -3.0),
        ("-1:02,5", -62.5), ("00:00:03.5", 3.5), ("00:00:03.50", 3.5), ("00:00:03,500", 3.5),
        ("00:00:03.123456", 3.123456), ("00:00:03,1000", 4.0), ("00:00:03.", 3.0),
        ("123:00:01", 442801.0), ("00:00:03:12", None), ("00:00:0O,500", None), ("00:03;12", None),
    ],
)  # fmt: skip
def test_times_are_seconds_or_nothing(value, seconds):
    assert parse_time(value, 1.0) == seconds


def test_a_unit_scales_numbers_and_no_clock_times():
    assert parse_time(1500, 0.001) == parse_time("1500", 0.001) == 1.5
    assert parse_time("00:01.5", 0.001) == 1.5
