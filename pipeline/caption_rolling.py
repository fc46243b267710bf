"""Rolling captions undone: each word of the narration once, at the time it was spoken.

Live recognition scrolls: every caption shows the line before and then its own new line, and between
two such captions a short one shows the finished line alone. Downloaders keep it all:

    check pic tonight pick                  0.41-3.91
    check pic tonight pick bowl             3.92-5.90     new: bowl
    bowl night honest cause got             5.91-10.25    new: night honest cause got

People repeat themselves too ("Heat. Heat."), and that must stay. So a video counts as rolling only
when at least half of its captions follow the one before without a pause and open with its new
words, and these repeats come to more than a few words. Only then, and only across such borders, a
caption loses the words that repeat; one that has no others is dropped and its time goes to the
caption it repeats.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pipeline.formats.captions import Caption

MAX_GAP_SECONDS = 0.25
"""Rolling captions follow each other without a pause; files leave 0 to 0.02 s."""
MIN_REPEATED_WORDS = 4
"""Below so many repeated words in a whole video, they may be the speaker's own."""
_MIN_PARTIAL_WORDS = 2
"""A repeat of only the end of the caption before must be so long."""


def mend_rolling_captions(captions: list[Caption], counts: Counter[str]) -> list[Caption]:
    """Undo rolling in one video's captions, which are in time order."""
    words = [caption.text.split() for caption in captions]
    repeated = _repeated_words(captions, words)
    if not _is_rolling(captions, repeated):
        return captions
    kept: list[Caption] = []
    for caption, own, repeat in zip(captions, words, repeated, strict=True):
        if repeat == len(own) and kept:
            counts["dropped_rolling"] += 1
            end = max(kept[-1].end_seconds, caption.end_seconds)
            kept[-1] = replace(kept[-1], end_seconds=end)
        elif repeat:
            counts["mended_rolling"] += 1
            kept.append(replace(caption, text=" ".join(own[repeat:])))
        else:
            kept.append(caption)
    return kept


def _follows(before: Caption, caption: Caption) -> bool:
    return abs(caption.start_seconds - before.end_seconds) <= MAX_GAP_SECONDS


def _repeated_words(captions: list[Caption], words: list[list[str]]) -> list[int]:
    """For each caption, how many of its first words only repeat the caption before."""
    repeated = [0] * len(captions)
    line: list[str] = []  # the newest line on the screen: what the next caption may repeat
    for at, own in enumerate(words):
        folded = [word.casefold() for word in own]
        if at and _follows(captions[at - 1], captions[at]):
            before = [word.casefold() for word in words[at - 1]]
            repeated[at] = _overlap(line, before, folded)
        line = folded[repeated[at] :] or line
    return repeated


def _overlap(line: list[str], before: list[str], own: list[str]) -> int:
    """Words at the start of `own` that repeat the newest line, or else the end of `before`."""
    if own[: len(line)] == line:
        return len(line)
    for length in range(min(len(before), len(own)), _MIN_PARTIAL_WORDS - 1, -1):
        if before[-length:] == own[:length]:
            return length
    return 0


def _is_rolling(captions: list[Caption], repeated: list[int]) -> bool:
    rolling = sum(repeat > 0 for repeat in repeated)
    return 2 * rolling >= len(captions) - 1 and sum(repeated) >= MIN_REPEATED_WORDS
