"""Each rule of cleaning, on the smallest caption that needs it."""

import math
import time
from collections import Counter

import pytest

from pipeline.caption_cleaning import clean_captions, clean_span, clean_text
from pipeline.formats.caption_sources import CENTRE, RawCaption
from pipeline.formats.captions import Caption
from tests.examples import captions_settings


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
    captions = clean_captions(rows, captions_settings(), seconds_per_unit=1, counts=counts)
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
        rows, captions_settings(offset_seconds=0.5), seconds_per_unit=1, counts=counts
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


def cleaned(rows, **settings):
    counts = Counter()
    settings = captions_settings(**settings)
    captions = clean_captions(rows, settings, seconds_per_unit=1, counts=counts)
    return captions, dict(+counts)


def test_a_caption_without_an_end_lasts_until_the_next_but_not_for_ever():
    rows = [
        RawCaption("a", 1, None, "stir"), RawCaption("a", "3", "", "fold"),
        RawCaption("a", 3, "nan", "or whisk"), RawCaption("a", 30, 31, "bake"),
        RawCaption("a", 40, "soon", "lost"), RawCaption("a", None, None, "lost"),
    ]  # fmt: skip
    captions, counts = cleaned(rows, longest_seconds=5)
    assert captions == [
        Caption("a", 1, 3, "stir"), Caption("a", 3, 8, "fold"), Caption("a", 3, 8, "or whisk"),
        Caption("a", 30, 31, "bake"),
    ]  # fmt: skip
    assert counts == {"read": 6, "kept": 4, "mended_end": 3, "dropped_time": 2}


def test_a_middle_becomes_a_span_around_it():
    rows = [RawCaption("a", "0.5", CENTRE, "stir"), RawCaption("a", 9, CENTRE, "fold")]
    captions, counts = cleaned(rows, centre_seconds=4)
    assert captions == [Caption("a", 0, 2.5, "stir"), Caption("a", 7, 11, "fold")]
    assert counts == {"read": 2, "kept": 2, "mended_negative": 1}


def test_texts_below_the_least_score_are_dropped_and_counted():
    rows = [
        RawCaption("a", 1, 2, "stir", 0.5), RawCaption("a", 1, 2, "fold", "0.4"),
        RawCaption("a", 1, 2, "bake"),
    ]  # fmt: skip
    assert len(cleaned(rows)[0]) == 3
    captions, counts = cleaned(rows, min_score=0.5)
    assert {caption.text for caption in captions} == {"stir", "bake"}
    assert counts == {"read": 3, "kept": 2, "dropped_score": 1}


def test_texts_without_blanks_are_kept_and_counted():
    texts = [
        "把面粉搅拌均匀",
        "小麦粉を混ぜる",
        "คนให้เข้ากัน",
        "밀가루를 섞어요",
        "add 盐 and pepper",
        "stir",
    ]
    _, counts = cleaned([RawCaption("a", n, n + 1, text) for n, text in enumerate(texts)])
    assert counts == {"read": 6, "kept": 6, "without_blanks": 3}
