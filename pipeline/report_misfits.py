"""What of captions and videos does not fit together: the first thing that a report says.

A wrong unit of times, or names that do not meet, cost no job and all of a training.
"""

from __future__ import annotations

from pipeline.formats.caption_summary import CaptionSummary
from pipeline.report_facts import BagFacts, Facts, VideoFacts

FEW = 0.01
"""Of the captions; fewer that do not fit are found in any collection."""
SHORT = 0.005
"""Of a video's time; seconds that are taken for milliseconds cover a thousandth of what they do."""


def misfits(facts: Facts) -> list[str]:
    """A line for each thing that does not fit; none where all do."""
    lines = [*facts.unmatched.sentences(), *_short(facts.captions, facts.videos)]
    if facts.bags:
        lines += _late(facts.bags)
    unparted, kept = facts.captions.counts.get("without_blanks", 0), facts.captions.captions
    if unparted > FEW * kept:
        lines.append(
            f"{unparted:,} of {kept:,} captions have no blanks between their words, as Chinese,"
            " Japanese and Thai are written; what stands between blanks is one word here"
        )
    return lines


def _late(bags: BagFacts) -> list[str]:
    late = bags.left_out.get("captions_after_video_end", 0)
    total = late + bags.captions + bags.left_out.get("captions_without_known_word", 0)
    if late <= FEW * total:
        return []
    said = (
        f"{late / total:.0%} of the captions ({late:,} of {total:,}) start after the end of their"
    )
    hint = ": look at captions.unit (seconds or milliseconds) and captions.offset_seconds"
    return [f"{said} videos{hint if late > total / 2 else ''}"]


def _short(captions: CaptionSummary, videos: VideoFacts) -> list[str]:
    if not captions.videos or not videos.encoded:
        return []
    covered = 3600 * captions.hours / captions.videos
    length = 3600 * videos.encoded_hours / videos.encoded
    if covered >= SHORT * length:
        return []
    return [
        f"captions cover {covered:.3g} s of a video that has any, and a video lasts {length:,.0f} s"
        " (means): look at captions.unit (seconds or milliseconds)"
    ]
