"""The vocabulary file: line numbers are token ids, and 0 is no word."""

import pytest

from pipeline.formats.vocabulary import read_vocabulary, write_vocabulary


def test_words_have_ids_from_one_on(tmp_path):
    words = ["the", "zoë's", "180", "हिन्दी"]
    write_vocabulary(tmp_path / "v.txt", words)
    assert read_vocabulary(tmp_path / "v.txt") == {"the": 1, "zoë's": 2, "180": 3, "हिन्दी": 4}
    assert (tmp_path / "v.txt").read_text(encoding="utf-8").split("\n")[2] == "zoë's"


@pytest.mark.parametrize("text", ["", "the\nof\n", "#bagpipe-vocabulary-1\nthe\nof"])
def test_a_foreign_or_cut_file_is_refused(tmp_path, text):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(ValueError, match="not a whole vocabulary file"):
        read_vocabulary(tmp_path / "v.txt")


def test_a_repeated_word_is_refused(tmp_path):
    write_vocabulary(tmp_path / "v.txt", ["the", "of", "the"])
    with pytest.raises(ValueError, match="a word twice"):
        read_vocabulary(tmp_path / "v.txt")
