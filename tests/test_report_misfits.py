"""What does not fit stands on the report's first screen, and where all fits nothing does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.formats.plan import write_unmatched
from pipeline.report_facts import Facts, gather
from pipeline.report_misfits import misfits
from tests.pages import make_page, make_trained
from tests.tiny_results import FITTING, TinyResults

TITLE = "Not all captions and videos fit together"


@pytest.fixture
def tiny(tmp_path: Path) -> TinyResults:
    """Results after all stages but the report."""
    return make_trained(tmp_path)


def with_captions(facts: Facts, *, late: int, inside: int, unknown: int = 0) -> Facts:
    """The same, with so many captions behind, and before, the end of their videos."""
    left_out = {"captions_after_video_end": late, "captions_without_known_word": unknown}
    return replace(facts, bags=replace(facts.bags, captions=inside, left_out=left_out))


def test_a_run_that_fits_says_nothing(tiny):
    assert misfits(gather(tiny.root, 5)) == []
    assert TITLE not in make_page(tiny)


def test_what_the_plan_could_not_match_is_said_before_anything_else(tiny):
    strays = replace(
        FITTING, unit="caption files", captions=7, caption_names=["<b>.vtt", "y.vtt", "z.vtt"],
        videos=1, video_ids=["quiet"],
    )  # fmt: skip
    write_unmatched(tiny.root / "plan", strays)
    page = make_page(tiny)
    header = page[page.index("<header>") : page.index("</header>")]
    assert TITLE in header
    assert "7 caption files belong to no video, as &#39;&lt;b&gt;.vtt&#39;, &#39;y.vtt" in header
    assert "1 videos have no captions, as &#39;quiet&#39;" in header


@pytest.mark.parametrize(
    ("late", "inside", "unknown", "said"),
    [
        (0, 100, 0, ""),
        (1, 99, 0, ""),  # one in a hundred is found anywhere
        (2, 97, 1, "2% of the captions (2 of 100) start after the end of their videos"),
        (50, 50, 0, "50% of the captions (50 of 100) start after the end of their videos"),
        (51, 0, 49, "51% of the captions (51 of 100) start after the end of their videos: look at"
                    " captions.unit (seconds or milliseconds) and captions.offset_seconds"),
    ],
)  # fmt: skip
def test_captions_behind_the_end_are_told_by_their_share(tiny, late, inside, unknown, said):
    facts = with_captions(gather(tiny.root, 5), late=late, inside=inside, unknown=unknown)
    assert misfits(facts) == ([said] if said else [])
    assert misfits(replace(facts, bags=None)) == []


def test_seconds_taken_for_milliseconds_cover_next_to_nothing(tiny):
    """Three videos of 6 s: the captions cover 6 s of each, and then a thousandth of it."""
    facts = gather(tiny.root, 5)
    short = replace(facts.captions, hours=facts.captions.hours / 1000)
    (line,) = misfits(replace(facts, captions=short))
    assert line.startswith("captions cover 0.006 s of a video that has any, and a video lasts 6 s")
    assert "captions.unit" in line
    tenth = replace(facts.captions, hours=facts.captions.hours / 10)
    assert misfits(replace(facts, captions=tenth)) == []
    none = replace(facts.captions, hours=0.0, videos=0, captions=0)
    assert misfits(replace(facts, captions=none)) == []


def test_words_without_blanks_between_are_told(tiny):
    facts = gather(tiny.root, 5)
    counts = {**facts.captions.counts, "without_blanks": 9}
    (line,) = misfits(replace(facts, captions=replace(facts.captions, counts=counts)))
    assert line.startswith("9 of 12 captions have no blanks between their words")
