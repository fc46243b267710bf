"""What a word is, and which token ids a caption gets."""

import subprocess
import sys
import unicodedata

import pytest

from pipeline.formats.tokenizer import encode_caption, tokenize


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Stir IT, well.", ["stir", "it", "well"]),
        ("don't 'quote' o'clock dogs' ''x''", ["don't", "quote", "o'clock", "dogs", "x"]),
        ("that’s ʼtis rockʼn", ["that's", "tis", "rock'n"]),
        ("pre-heat to 180°C snake_case", ["pre", "heat", "to", "180", "c", "snake", "case"]),
        ("Straße ﬁne Ａ", ["strasse", "fine", "a"]),
        ("cafe\u0301", ["café"]),
        ("Zoë's crème", ["zoë's", "crème"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("добавьте 2½", ["добавьте", "21", "2"]),
        ("", []),
        ("... -- ♪ ' _ é", ["é"]),
    ],
)
def test_words_by_the_rule(text, words):
    assert tokenize(text) == words


def test_words_of_ascii_take_a_short_way_to_the_same_end():
    text = "".join(map(chr, range(32, 127))) + " a'b c''d 'e' F_G h1'2 --it's--"
    assert tokenize(text) == tokenize(text + " é")[:-1]


def test_no_word_holds_what_the_rule_forbids_and_words_are_their_own_words():
    every = " ".join(f"x{chr(code)}y" for code in range(0x20, 0x3000))
    for word in tokenize(every):
        assert all(c == "'" or unicodedata.category(c)[0] in "LNM" for c in word), word
        assert tokenize(word) == [word]


def test_encoding_takes_the_first_known_words():
    ids = {"stir": 1, "the": 2, "pot": 3}
    assert encode_caption("Now STIR the, er, big pot the pot", ids, 4) == [1, 2, 3, 2]
    assert encode_caption("nothing here", ids, 4) == []
    assert encode_caption("pot", ids, 20) == [3]


def test_importing_it_is_light():
    """The trainer imports the tokenizer: no pandas, torch, av or subtitles come with it."""
    code = "import sys, pipeline.formats.tokenizer; print(*sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert not loaded & {"pandas", "torch", "av", "webdataset"}


def test_an_acute_accent_in_place_of_an_apostrophe_parts_no_word():
    assert tokenize("I don´t") == tokenize("I don't") == ["i", "don't"]
