"""The words that have token ids: counted once over all captions, or given as a list; then frozen.

Reads   results/captions/summary.json (which shards there are) and results/captions/{shard}.parquet
Writes  results/vocabulary.txt, the most frequent word first
Run     python -m pipeline.vocabulary --summary results/captions/summary.json
            --captions results/captions --settings results/settings/vocabulary.json
            --output results/vocabulary.txt

What a word is, `pipeline.formats.tokenizer` says. Words that are equally frequent are kept in
alphabetical order. With `word_list`, nothing is counted: its words are kept in their order, and
`max_words` and `min_count` do not apply.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.cli import run
from pipeline.formats.caption_summary import read_caption_summary
from pipeline.formats.captions import VERSION
from pipeline.formats.command_line import CommandLine
from pipeline.formats.parquet import read_table
from pipeline.formats.settings import read_settings
from pipeline.formats.tokenizer import fold, tokenize
from pipeline.formats.vocabulary import write_vocabulary
from pipeline.settings import VocabularySettings

logger = logging.getLogger(__name__)


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
    folded = [(entry, fold(entry)) for entry in entries]
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
    parser = CommandLine(
        prog="python -m pipeline.vocabulary",
        description="The clean captions of all shards go in; the words with token ids come out.",
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
