"""The rules by which raw captions become clean ones; pure functions, nothing is read or written.

What becomes of what, each counted under the name in front:

- `dropped_time`: a start that is missing, or a time that is unreadable, NaN, infinite or absurdly
  large.
- `mended_end`: a missing end is the next caption's start, but at most `captions.longest_seconds`
  behind its own.
- `dropped_score`: a text whose score is below `captions.min_score`.
- `mended_reversed`, `dropped_reversed`: an end before its start is a swapped pair when the span is
  at most `MAX_SWAPPED_SECONDS`, as captions are; in a longer one a time is wrong (real files have
  `1193:02:47 --> 00:00:20` and `16.0,1.0` for 16-18), and nobody knows which of the two.
- `mended_negative`, `dropped_negative`: a span that begins before 0 is cut there; one that ends
  there or before is dropped.
- `mended_zero_length`: an end equal to its start moves to `start + MIN_SECONDS`.
- `dropped_empty`: no text, or nothing in it that is a letter or a digit.
- `dropped_sound_tag`: nothing but tags in square brackets, as `[Music]`. Beside words tags stay.
- `mended_markup`, `mended_entities`, `mended_whitespace`: tags removed, `&amp;` read as `&`, line
  ends and runs of white space made one space. A caption may count under several.
- `dropped_duplicate`: the same span and text again.
- `without_blanks`: kept, but mostly of letters between which no blank parts words, as in Chinese.
- `mended_rolling`, `dropped_rolling`: see `pipeline.caption_rolling`.

Text that is not in the way stays as it is: case, punctuation, repeats.
"""

from __future__ import annotations

import bisect
import html
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from pipeline.caption_rolling import mend_rolling_captions
from pipeline.formats.caption_sources import CENTRE, MISSING_TEXTS, RawCaption
from pipeline.formats.caption_times import parse_time
from pipeline.formats.captions import Caption
from pipeline.settings import CaptionsSettings

MIN_SECONDS = 0.1
MAX_SWAPPED_SECONDS = 10.0
_MARKUP = re.compile(
    r"</?(?:b|br|c|font|i|lang|p|rt|ruby|s|span|strike|u|v)(?:[.\s][^<>]*)?/?>"
    r"|<\d[\d:.,]*>|\{\\[^{}]*\}",
    re.IGNORECASE,
)
_BREAK = re.compile(r"<(?:br|p)\b[^<>]*>", re.IGNORECASE)
_JOINERS = "\u200c\u200d"  # these join letters and emoji within a word
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_SOUND_TAGS = re.compile(r"(?:[^\w\[\]]*\[[^\[\]]*\])+[^\w\[\]]*")


def clean_captions(
    rows: Iterable[RawCaption],
    settings: CaptionsSettings,
    *,
    seconds_per_unit: float,
    counts: Counter[str],
) -> list[Caption]:
    """Clean one video's captions, in time order; add to `counts` under the names above.

    `read` counts the rows that came, `kept` those returned; the difference is what was dropped.
    """
    rows = list(rows)
    starts = sorted(
        {s for row in rows if (s := parse_time(row.start, seconds_per_unit)) is not None}
    )
    captions = []
    for row in rows:
        found: Counter[str] = Counter()
        start, end = _times(row, starts, settings, seconds_per_unit, found)
        caption = _clean_caption(row, start, end, settings, found)
        counts["read"] += 1
        if caption is not None:
            captions.append(caption)
            counts.update(found)
        else:  # what was mended before it was dropped is nobody's concern
            counts.update(reason for reason in found if reason.startswith("dropped_"))
    captions = _without_duplicates(captions, counts)
    if settings.mend_rolling:
        captions = mend_rolling_captions(captions, counts)
    counts["kept"] += len(captions)
    counts["without_blanks"] += sum(map(_is_without_blanks, captions))
    return captions


def _times(
    row: RawCaption,
    starts: list[float],
    settings: CaptionsSettings,
    seconds_per_unit: float,
    counts: Counter[str],
) -> tuple[float | None, float | None]:
    """Start and end in seconds as the row says or implies them; None: unreadable.

    `starts` are those of the video, sorted and each once.
    """
    start, end = (parse_time(value, seconds_per_unit) for value in (row.start, row.end))
    if start is None:
        return None, None
    if row.end == CENTRE:
        half = settings.centre_seconds / 2
        return start - half, start + half
    if row.end is None or (isinstance(row.end, str) and row.end.strip() in MISSING_TEXTS):
        counts["mended_end"] += 1
        following = bisect.bisect_right(starts, start)
        nearest = starts[following] if following < len(starts) else math.inf
        return start, min(nearest, start + settings.longest_seconds)
    return start, end


def _clean_caption(
    row: RawCaption,
    start: float | None,
    end: float | None,
    settings: CaptionsSettings,
    counts: Counter[str],
) -> Caption | None:
    score = parse_time(row.score)
    if settings.min_score is not None and score is not None and score < settings.min_score:
        counts["dropped_score"] += 1
        return None
    span = clean_span(start, end, settings.offset_seconds, counts)
    if span is None:
        return None
    text = clean_text(row.text, counts)
    return None if text is None else Caption(row.video_id, *span, text)


def _is_without_blanks(caption: Caption) -> bool:
    text = caption.text
    return not text.isascii() and 2 * len(_UNSPACED.findall(text)) > sum(map(str.isalnum, text))


def clean_span(
    start: float | None, end: float | None, offset_seconds: float, counts: Counter[str]
) -> tuple[float, float] | None:
    """A span with 0 <= start < end in seconds, or None when it must be dropped."""
    if start is None or end is None:
        counts["dropped_time"] += 1
        return None
    mended = []
    if end < start:
        if start - end > MAX_SWAPPED_SECONDS:
            counts["dropped_reversed"] += 1
            return None
        start, end = end, start
        mended.append("mended_reversed")
    start, end = start + offset_seconds, end + offset_seconds
    if end < 0 or end == 0 > start:
        counts["dropped_negative"] += 1
        return None
    if start < 0:
        start = 0.0
        mended.append("mended_negative")
    if end == start:
        end = start + MIN_SECONDS
        mended.append("mended_zero_length")
    counts.update(mended)
    return start, end


def clean_text(text: object, counts: Counter[str]) -> str | None:
    """The words of a caption on one line, or None when there are none."""
    if not isinstance(text, str) or not has_word(text):
        counts["dropped_empty"] += 1
        return None
    steps = [("mended_markup", _strip_markup), ("mended_entities", _read_entities)]
    steps += [("mended_markup", _strip_markup), ("mended_whitespace", _one_line)]
    mended: dict[str, int] = {}
    for reason, step in steps:
        cleaned = step(text)
        if cleaned != text:
            mended[reason] = 1
        text = cleaned
    if not has_word(text):
        counts["dropped_empty"] += 1
        return None
    if _SOUND_TAGS.fullmatch(text):
        counts["dropped_sound_tag"] += 1
        return None
    counts.update(mended)
    return text


def has_word(text: str) -> bool:
    """Whether there is a letter or a digit in `text`."""
    return any(character.isalnum() for character in text)


def _strip_markup(text: str) -> str:
    if "<" not in text and "{" not in text:
        return text
    return _MARKUP.sub("", _BREAK.sub("\n", text))


def _read_entities(text: str) -> str:
    """Entities read twice: what services send escaped is often escaped again on its way."""
    return html.unescape(html.unescape(text)) if "&" in text else text


def _one_line(text: str) -> str:
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    # Format characters (zero width spaces, marks of direction) part no words, others may.
    # A lone half of a surrogate pair, as broken JSON has it, could not even be written.
    replacement = {"Cf": "", "Cc": " ", "Cs": " "}
    printable = (c if c in _JOINERS else replacement.get(unicodedata.category(c), c) for c in text)
    return " ".join("".join(printable).split())


def _without_duplicates(captions: list[Caption], counts: Counter[str]) -> list[Caption]:
    ordered = sorted(captions, key=lambda c: (c.start_seconds, c.end_seconds))
    unique = list(dict.fromkeys(ordered))
    counts["dropped_duplicate"] += len(captions) - len(unique)
    return unique
