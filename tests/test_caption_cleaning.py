"""Each rule of cleaning, on the smallest caption that needs it."""

import math
import time
from collections import Counter

import pytest

from pipeline.caption_cleaning import clean_captions, clean_span, clean_text, parse_time
from pipeline.formats.caption_sources import RawCaption
from pipeline.formats.captions import Caption


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
    ],
)  # fmt: skip
def test_times_are_seconds_or_nothing(value, seconds):
    assert parse_time(value, 1.0) == seconds


def test_a_unit_scales_numbers_and_no_clock_times():
    assert parse_time(1500, 0.001) == parse_time("1500", 0.001) == 1.5
    assert parse_time("00:01.5", 0.001) == 1.5


@pytest.mark.parametrize(
    ("start", "end", "span", "reason"),
    [
        (1.0, 2.0, (1.0, 2.0), None),
        (5.0, 2.0, (2.0, 5.0), "mended_reversed"),
        (11.0, 1.0, (1.0, 11.0), "mended_reversed"),
        (16.0, 1.0, None, "dropped_reversed"),
        (334967.0, 20.0, None, "dropped_reversed"),
        (-1.0, 2.0, (0.0, 2.0), "mended_negative"),
        (-2.0, -1.0, None, "dropped_negative"),
        (-2.0, 0.0, None, "dropped_negative"),
        (0.0, 0.0, (0.0, 0.1), "mended_zero_length"),
        (3.0, 3.0, (3.0, 3.1), "mended_zero_length"),
        (None, 2.0, None, "dropped_time"),
    ],
)
def test_spans_are_mended_or_dropped_and_counted(start, end, span, reason):
    counts = Counter()
    assert clean_span(start, end, 0.0, counts) == span
    assert counts == Counter([reason] if reason else [])


def test_the_offset_comes_before_the_check_for_negative_times():
    counts = Counter()
    assert clean_span(-3.0, -2.0, 5.0, counts) == (2.0, 3.0)
    assert not counts
    assert clean_span(1.0, 2.0, -1.5, counts) == (0.0, 0.5)
    assert counts == {"mended_negative": 1}


@pytest.mark.parametrize(
    ("text", "clean", "reasons"),
    [
        ("Stir it.", "Stir it.", []),
        ("<i>stir</i> it", "stir it", ["mended_markup"]),
        ("stir<00:00:01.920><c.yellow> it</c>", "stir it", ["mended_markup"]),
        (r"{\an8}stir it", "stir it", ["mended_markup"]),
        ("<v Roger Bingham>stir it", "stir it", ["mended_markup"]),
        ('<font color="#ff0000">stir</font> it', "stir it", ["mended_markup"]),
        ("stir<br/>it", "stir it", ["mended_markup", "mended_whitespace"]),
        ("if a < b and c > d", "if a < b and c > d", []),
        ("use {a} or <this>", "use {a} or <this>", []),
        ("salt &amp; pepper", "salt & pepper", ["mended_entities"]),
        ("that&amp;#39;s it", "that's it", ["mended_entities"]),
        ("&lt;i&gt;stir&lt;/i&gt; it", "stir it", ["mended_entities", "mended_markup"]),
        ("AT&T", "AT&T", []),
        ("  stir\r\n it ", "stir it", ["mended_whitespace"]),
        ("stir\u00a0\u200bit\ufeff", "stir it", ["mended_whitespace"]),
        ("caf\ud83d é", "caf é", ["mended_whitespace"]),
        ("हिन्\u200dदी", "हिन्\u200dदी", []),
        ("[Music] stir it", "[Music] stir it", []),
        ("(stir it)", "(stir it)", []),
        ("[Music]", None, ["dropped_sound_tag"]),
        ("♪ [Music] [Applause]\n♪", None, ["dropped_sound_tag"]),
        ("♪ ♪", None, ["dropped_empty"]),
        ("<i></i>", None, ["dropped_empty"]),
        ("...", None, ["dropped_empty"]),
        ("", None, ["dropped_empty"]),
        (None, None, ["dropped_empty"]),
        (math.nan, None, ["dropped_empty"]),
    ],
)
def test_texts_are_mended_or_dropped_and_counted(text, clean, reasons):
    counts = Counter()
    assert clean_text(text, counts) == clean
    assert counts == Counter(reasons)


def test_genuine_repeats_and_overlaps_stay():
    rows = [
        RawCaption("a", 0, 20.3, "Heat."), RawCaption("a", 21.3, 24.3, "Heat. Heat."),
        RawCaption("a", 43, 46, "Heat."), RawCaption("a", 64, 68, "Heat. Heat."),
        RawCaption("a", 64, 66, "Heat. Heat."),
    ]  # fmt: skip
    counts = Counter()
    captions = clean_captions(
        rows, seconds_per_unit=1, offset_seconds=0, mend_rolling=True, counts=counts
    )
    assert [c.text for c in captions] == ["Heat.", "Heat. Heat.", "Heat.", "Heat. Heat."] + [
        "Heat. Heat."
    ]
    assert +counts == {"read": 5, "kept": 5}


def test_exact_duplicates_go_and_the_sum_adds_up():
    rows = [
        RawCaption("a", "4", "5", "late"), RawCaption("a", 1, 2, "stir"),
        RawCaption("a", 1, 2, "<b>stir</b>"), RawCaption("a", "x", 2, "y"),
        RawCaption("a", 3, 3, "[Music]"), RawCaption("a", 900, 2, "z"),
    ]  # fmt: skip
    counts = Counter()
    captions = clean_captions(
        rows, seconds_per_unit=1, offset_seconds=0.5, mend_rolling=True, counts=counts
    )
    assert captions == [Caption("a", 1.5, 2.5, "stir"), Caption("a", 4.5, 5.5, "late")]
    assert counts["dropped_duplicate"] == 1
    dropped = sum(n for reason, n in counts.items() if reason.startswith("dropped_"))
    assert counts["read"] == counts["kept"] + dropped == 6


def test_a_tag_that_never_ends_takes_no_time():
    """Two stars over the same spaces took minutes for a caption of 100,000."""
    began = time.process_time()
    assert clean_text("<b" + " " * 100_000 + "x", Counter()) == "<b x"
    assert time.process_time() - began < 5
