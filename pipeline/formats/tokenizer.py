"""What a word of a text is, and the token ids that a vocabulary gives to a caption.

A text is brought to Unicode NFKC and case-folded, and the apostrophes ’, ʼ and ´ become '. Words
are the maximal runs of letters (with their combining marks) and digits; an apostrophe between two
of these belongs to the word. All else parts words:

    "Don't PRE-heat it to 180°, Zoë's ½ cup!" -> don't pre heat it to 180 zoë's 1 2 cup
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache

_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")


def tokenize(text: str) -> list[str]:
    """The words of `text`, by the rule at the top of this file."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return _word_pattern().findall(fold(text))


def fold(text: str) -> str:
    """NFKC, case-folded, with one kind of apostrophe and no underscore."""
    text = text.replace("´", "'")  # NFKC would make a blank and a combining accent of it
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return folded.replace("’", "'").replace("ʼ", "'").replace("_", " ")


def encode_caption(text: str, ids: dict[str, int], max_words: int) -> list[int]:
    """The token ids of the first `max_words` words of `text` that are in the vocabulary."""
    return token_ids(tokenize(text), ids)[:max_words]


def token_ids(words: Iterable[str], ids: dict[str, int]) -> list[int]:
    """The token ids of those words that are in the vocabulary."""
    return [ids[word] for word in words if word in ids]


@cache
def _word_pattern() -> re.Pattern[str]:
    """As `_ASCII_WORD` for all of Unicode, underscores gone; `re` knows letters, but no marks."""
    marks = "".join(
        chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"
    )
    character = rf"[\w{marks}]"
    return re.compile(rf"{character}+(?:'{character}+)*")
