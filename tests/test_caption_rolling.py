"""Rolling captions lose what they repeat; everything else keeps each word."""

from collections import Counter

from pipeline.caption_rolling import mend_rolling_captions
from pipeline.formats.captions import Caption


def mend(*rows):
    counts = Counter()
    captions = mend_rolling_captions([Caption("a", *row) for row in rows], counts)
    return [(c.start_seconds, c.end_seconds, c.text) for c in captions], dict(counts)


def roll(lines, *, static):
    """What a live recogniser makes of `lines`, one each second; `static` adds the short ones."""
    rows, before = [], ""
    for at, line in enumerate(lines):
        rows.append((float(at), at + (0.99 if static else 1.0), f"{before} {line}".strip()))
        if static:
            rows.append((at + 0.99, at + 1.0, line))
        before = line
    return rows


LINES = ["We mix the flour", "flour and salt", "and then", "and then", "water comes", "in."]


def test_rolling_lines_come_back_as_they_were_spoken():
    expected = [(float(at), at + 1.0, line) for at, line in enumerate(LINES)]
    assert mend(*roll(LINES, static=False)) == (expected, {"mended_rolling": 5})
    assert mend(*roll(LINES, static=True)) == (
        expected, {"mended_rolling": 5, "dropped_rolling": 6}
    )  # fmt: skip


def test_a_pause_begins_afresh_and_repeats_over_it_stay():
    first = roll(LINES, static=False)
    later = [(start + 10, end + 10, text) for start, end, text in first]
    captions, _ = mend(*first, *later)
    assert [text for *_, text in captions] == LINES + LINES


def test_case_does_not_hide_a_repeat_and_the_kept_text_keeps_its_case():
    captions, _ = mend((0, 1, "stir the big POT"), (1, 2, "Stir the big pot Then Wait"))
    assert captions == [(0, 1, "stir the big POT"), (1, 2, "Then Wait")]


def test_a_file_that_begins_within_the_roll_is_mended_by_the_end_of_the_line_before():
    captions, _ = mend(
        (0, 1, "one two three four"), (1, 2, "three four five six"), (2, 3, "five six seven"),
        (3, 4, "seven eight"),
    )  # fmt: skip
    assert [text for *_, text in captions] == ["one two three four", "five six", "seven", "eight"]


def test_few_repeated_words_are_the_speakers_own():
    rows = [(0, 1, "stir the pot"), (1, 2, "stir the pot then wait")]
    assert mend(*rows) == (rows, {})


def test_narration_with_a_few_repeats_is_not_rolling():
    rows = [
        (0, 1, "now we add the salt"), (1, 2, "now we add the salt again"),
        (2, 3, "and stir"), (3, 4, "until it is smooth"), (4, 5, "like so"), (5, 6, "and taste"),
    ]  # fmt: skip
    assert mend(*rows) == (rows, {})


def test_overlapping_captions_are_not_rolling():
    rows = [(i, i + 4, f"step {i} is done step {i}") for i in range(8)]
    assert mend(*rows) == (rows, {})


def test_none_and_one_caption_pass():
    assert mend() == ([], {})
    assert mend((0, 1, "alone")) == ([(0, 1, "alone")], {})
