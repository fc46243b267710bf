"""Which words are kept, and that the counting covers the summary's shards."""

import json
import subprocess
import sys

import pytest

from pipeline.formats.caption_summary import CaptionSummary, write_caption_summary
from pipeline.formats.captions import Caption, write_captions
from pipeline.formats.vocabulary import read_vocabulary
from pipeline.vocabulary import choose_words, count_words, main

SETTINGS = {"max_words": 100, "min_count": 1, "max_caption_words": 20, "word_list": None}


def test_the_most_frequent_are_kept_and_ties_are_alphabetical():
    counts = count_words(["b a c", "c b", "d c"])
    assert counts == {"c": 3, "b": 2, "a": 1, "d": 1}
    assert choose_words(counts, max_words=10, min_count=1) == ["c", "b", "a", "d"]
    assert choose_words(counts, max_words=3, min_count=1) == ["c", "b", "a"]
    assert choose_words(counts, max_words=10, min_count=2) == ["c", "b"]


@pytest.fixture
def make(tmp_path):
    """Write a table for each shard and run the stage; return the vocabulary."""

    def run(shards, *, named=None, **settings):
        for name, texts in shards.items():
            captions = [Caption("v", i, i + 1, text) for i, text in enumerate(texts)]
            write_captions(tmp_path / f"{name}.parquet", captions, {})
        digests = dict.fromkeys(shards if named is None else named, "0")
        summary = CaptionSummary(shards=digests, counts={}, videos=1, captions=1, hours=1)
        write_caption_summary(tmp_path / "summary.json", summary)
        (tmp_path / "vocabulary.json").write_text(json.dumps(SETTINGS | settings))
        main(arguments(tmp_path))
        return list(read_vocabulary(tmp_path / "vocabulary.txt"))

    return run


def arguments(folder):
    return [
        "--summary", str(folder / "summary.json"), "--captions", str(folder),
        "--settings", str(folder / "vocabulary.json"), "--output", str(folder / "vocabulary.txt"),
    ]  # fmt: skip


def test_the_stage_counts_the_shards_that_the_summary_names(make):
    shards = {"00000": ["Stir the pot", "the Pot"], "00001": ["the bowl"], "00002": ["stale " * 9]}
    words = make(shards, named=["00000", "00001"])
    assert words == ["the", "pot", "bowl", "stir"]


def test_the_limits_apply(make):
    shards = {"00000": ["the the pot pot bowl", "a"]}
    assert make(shards, max_words=2) == ["pot", "the"]
    assert make(shards, min_count=2) == ["pot", "the"]
    with pytest.raises(ValueError, match=r"no word stands 3 times.*4 different words"):
        make(shards, min_count=3)
    with pytest.raises(ValueError, match=r"there is no caption with a word: logs/captions/"):
        make({"00000": []})


def test_a_given_list_replaces_the_counting(make, tmp_path, caplog):
    path = tmp_path / "words.txt"
    path.write_text("\ufeffPot\nthe\n\npot\nnew york\n</s>\n  stir \n", encoding="utf-8")
    words = make({"00000": ["other"]}, word_list=str(path), max_words=1, min_count=9)
    assert words == ["pot", "the", "stir"]
    assert "2 lines are not one word, as 'new york', '</s>'" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\n--\n", "no word in its 1 lines"), (b"\xff\xfe\x00", "not UTF-8 text")],
)
def test_a_list_without_words_is_refused(make, tmp_path, content, message):
    (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        make({"00000": ["x"]}, word_list=str(tmp_path / "words.txt"))


def test_a_missing_table_or_list_is_one_line(make, tmp_path):
    make({"00000": ["x"]})
    (tmp_path / "00000.parquet").unlink()
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.vocabulary", *arguments(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "00000.parquet" in result.stderr
