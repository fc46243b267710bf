"""The words that have token ids: counted once over all captions, or given as a list; then frozen.

Reads   results/captions/summary.json (which shards there are) and results/captions/{shard}.parquet
Writes  results/vocabulary.txt, the most frequent word first
Run     python -m pipeline.vocabulary --summary results/captions/summary.json
            --captions results/captions --settings results/settings/vocabulary.json
            --output results/vocabulary.txt

What a word is. A text is brought to Unicode NFKC and case-folded, and the apostrophes ’ and ʼ
become '. Words are the maximal runs of letters (with their combining marks) and digits; an
apostrophe between two of these belongs to the word. All else parts words:

    "Don't PRE-heat it to 180°, Zoë's ½ cup!" -> don't pre heat it to 180 zoë's 1 2 cup

Words that are equally frequent are kept in alphabetical order. With `word_list`, nothing is
counted: its words are kept in their order, and `max_words` and `min_count` do not apply.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from pipeline.cli import run
from pipeline.formats.caption_summary import read_caption_summary
from pipeline.formats.captions import VERSION
from pipeline.formats.parquet import read_table
from pipeline.formats.settings import read_settings
from pipeline.formats.vocabulary import write_vocabulary
from pipeline.settings import VocabularySettings

logger = logging.getLogger(__name__)

_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")


def tokenize(text: str) -> list[str]:
    """The words of `text`, by the rule at the top of this file."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return _word_pattern().findall(_folded(text))


def _folded(text: str) -> str:
    """NFKC, case-folded, with one kind of apostrophe and no underscore."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return folded.replace("’", "'").replace("ʼ", "'").replace("_", " ")


def encode_caption(text: str, ids: dict[str, int], max_words: int) -> list[int]:
    """The token ids of the first `max_words` words of `text` that are in the vocabulary."""
    known = (ids[word] for word in tokenize(text) if word in ids)
    return [token for _, token in zip(range(max_words), known, strict=False)]


@cache
def _word_pattern() -> re.Pattern[str]:
    """As `_ASCII_WORD` for all of Unicode, underscores gone; `re` knows letters, but no marks."""
    marks = "".join(
        chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"
    )
    character = rf"[\w{marks}]"
    return re.compile(rf"{character}+(?:'{character}+)*")


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word stands in `texts`."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenize(text))
    return counts


def choose_words(counts: Counter[str], *, max_words: int, min_count: int) -> list[str]:
    """The most frequent words, ties in alphabetical order."""
    frequent = [word for word, count in counts.items() if count >= min_count]
    return sorted(frequent, key=lambda word: (-counts[word], word))[:max_words]


def read_word_list(path: str | Path) -> list[str]:
    """The words of a given list, each once, in its order and as `tokenize` writes them.

    Lines that are not one word by the tokenizer's rule could never be met; they are left out.

    Raises:
        ValueError: the file is not UTF-8 text, or no line is a word.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"vocabulary.word_list {path} is not UTF-8 text: {error}") from None
    entries = [line.strip() for line in lines if line.strip()]
    folded = [(entry, _folded(entry)) for entry in entries]
    words = list(dict.fromkeys(word for _, word in folded if tokenize(word) == [word]))
    foreign = [entry for entry, word in folded if tokenize(word) != [word]]
    if not words:
        raise ValueError(
            f"vocabulary.word_list {path} has no word in its {len(entries)} lines;"
            " it needs one word on each line"
        )
    if foreign:
        shown = ", ".join(map(repr, foreign[:3]))
        logger.warning("%s: %d lines are not one word, as %s", path, len(foreign), shown)
    return words


def _texts(summary: Path, captions: Path) -> Iterator[str]:
    """Stream the caption texts of the shards that the summary names."""
    for shard in read_caption_summary(summary).shards:
        table = captions / f"{shard}.parquet"
        columns, _ = read_table(table, {"text": "string"}, version=VERSION)
        yield from columns["text"]


def make_vocabulary(summary: Path, captions: Path, settings: VocabularySettings) -> list[str]:
    """The words of the vocabulary in id order.

    Raises:
        ValueError: no word is frequent enough.
    """
    if settings.word_list is not None:
        return read_word_list(settings.word_list)
    counts = count_words(_texts(summary, captions))
    if not counts:
        raise ValueError(
            "there is no caption with a word: logs/captions/ say what was dropped and why; or name"
            " a vocabulary.word_list"
        )
    words = choose_words(counts, max_words=settings.max_words, min_count=settings.min_count)
    if not words:
        raise ValueError(
            f"no word stands {settings.min_count} times in the captions"
            f" ({len(counts)} different words): lower vocabulary.min_count"
        )
    kept, total = sum(counts[word] for word in words), counts.total()
    logger.info("%d of %d words, %.2f %% of the text", len(words), len(counts), 100 * kept / total)
    return words


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(
        description="The clean captions of all shards go in; the words with token ids come out."
    )
    parser.add_argument("--summary", type=Path, required=True, help="the captions' summary.json")
    parser.add_argument("--captions", type=Path, required=True, help="folder of caption tables")
    parser.add_argument("--settings", type=Path, required=True, help="frozen section `vocabulary`")
    parser.add_argument("--output", type=Path, required=True, help="vocabulary to write")
    arguments = parser.parse_args(argv)
    settings = read_settings(VocabularySettings, arguments.settings)
    words = make_vocabulary(arguments.summary, arguments.captions, settings)
    write_vocabulary(arguments.output, words)


if __name__ == "__main__":
    run(main)
