"""Word vectors of others, in every form, into the rows of a vocabulary."""

from __future__ import annotations

import gzip
import logging

import numpy as np
import pytest
import torch

from tests.synthetic_bags import train_settings
from trainer.model import build_model
from trainer.word_vectors import load_word_vectors, read_vectors

WORDS = ["cut", "onion", "the", "über", "new york", "zebra"]
VECTORS = {
    "the": [0.1, 0.2, 0.3],
    "Cut": [9.0, 9.0, 9.0],
    "cut": [0.4, 0.5, -0.6],
    "ONION": [0.7, -0.8, 0.9],
    "über": [0.0, 0.1, 0.0],
    "new york": [1.0, 0.0, -1.0],
    "unused": [5.0, 5.0, 5.0],
}
KNOWN = {"cut": "cut", "onion": "ONION", "the": "the", "über": "über", "new york": "new york"}


def write_text(path, header=""):
    lines = [f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items()]
    data = (header + "".join(lines)).encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_binary(path, ending=b""):
    data = f"{len(VECTORS)} 3\n".encode()
    for word, vector in VECTORS.items():
        word = word.replace(" ", "_")
        data += word.encode("utf-8") + b" " + np.array(vector, "<f4").tobytes() + ending
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def model_of(**changes):
    settings = train_settings(**({"word_dim": 3, "embedding_dim": 4} | changes))
    return build_model(settings, feature_dim=5, num_words=len(WORDS), max_caption_words=4)


def write_form(form: str, tmp_path):
    """A file of the vectors in one form; its path and its word list."""
    path, word_list = tmp_path / form, None
    if form == "header.vec":
        write_text(path, header=f"{len(VECTORS)} 3\n")
    elif "bin" in form:
        write_binary(path, ending=b"\n" if "lines" in form else b"")
    elif form.endswith(".npy"):
        np.save(path, np.array(list(VECTORS.values())))
        word_list = tmp_path / ("words.npy" if form == "b.npy" else "words.txt")
        if form == "b.npy":
            np.save(word_list, np.array(list(VECTORS)))
        else:
            word_list.write_text("\n".join(VECTORS) + "\n", encoding="utf-8")
    else:
        write_text(path)
    return path, word_list


@pytest.mark.parametrize(
    "form",
    ["a.txt", "a.txt.gz", "header.vec", "a.bin", "lines.bin", "a.bin.gz", "a.npy", "b.npy"],
)
def test_every_form_fills_the_same_rows(form, tmp_path, caplog):
    path, word_list = write_form(form, tmp_path)
    model = model_of()
    known = {w: v for w, v in KNOWN.items() if "bin" not in form or " " not in w}
    with caplog.at_level(logging.INFO):
        assert load_word_vectors(model, WORDS, path, word_list) == len(known)
    assert f"{len(known)} of 6 words ({100 * len(known) / 6:.1f} %) have a vector" in caplog.text
    table = model.text.words.weight.detach()
    assert torch.equal(table[0], torch.zeros(3))
    for word, source in known.items():
        assert torch.equal(table[1 + WORDS.index(word)], torch.tensor(VECTORS[source])), word
    spread = np.std([VECTORS[source] for source in known.values()])
    assert 0 < table[6].abs().max() < 4 * spread  # a word without a vector is as large as others


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("a.txt", b"the 1 2 3\ncut 1 x 3\n", r"a\.txt line 2 has no 3 numbers after a word"),
        ("a.txt", b"the 1 2 3\n1 2\n", r"a\.txt line 2 has 1 numbers, not 3"),
        ("a.txt", b"the 1 2\n", r"a\.txt has 2 numbers for 'the', but word_dim is 3"),
        ("a.txt", b"none 1 2 3\n", r"a\.txt has no word of the vocabulary \(such as cut, onion"),
        ("a.bin", b"2 3\nthe " + bytes(12) + b"cut ", r"a\.bin ends within word 2 of 2"),
        ("a.bin", b"the 1 2 3", r"a\.bin does not begin with a word2vec header"),
        ("a.npy", b"x", r"a\.npy needs its words: name them in word_list"),
        ("a.model", b"x", r"a\.model is neither \.bin, \.txt, \.vec nor \.npy"),
    ],
)
def test_bad_word_vectors_are_named(name, data, line, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=line):
        load_word_vectors(model_of(), WORDS, tmp_path / name, None)


def test_missing_files_and_lists_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"word_vectors .* does not exist"):
        load_word_vectors(model_of(), WORDS, tmp_path / "none.txt", None)
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    with pytest.raises(FileNotFoundError, match=r"word_list .* does not exist"):
        load_word_vectors(model_of(), WORDS, tmp_path / "a.npy", tmp_path / "none.txt")
    (tmp_path / "words.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"has shape \(3, 3\), but .* has 2 words"):
        load_word_vectors(model_of(), WORDS, tmp_path / "a.npy", tmp_path / "words.txt")
    np.save(tmp_path / "a.npy", np.array([{}]))
    with pytest.raises(ValueError, match=r"a\.npy is no \.npy without pickles"):
        load_word_vectors(model_of(), WORDS, tmp_path / "a.npy", tmp_path / "words.txt")


@pytest.mark.parametrize("name", ["glove.6B.300d.sample.txt.gz", "test_glove.txt"])
def test_real_word_vectors_load(name, real_data):
    path = real_data / "captions/wordvectors" / name
    rows = list(read_vectors(path, None))
    words = [word for word, _ in rows[:3]]
    dim = len(rows[0][1])
    settings = train_settings(word_dim=dim)
    model = build_model(settings, feature_dim=5, num_words=3)
    assert load_word_vectors(model, words, path, None) == 3
    assert np.allclose(model.text.words.weight[1].detach(), rows[0][1])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.bin", b"2 1000000000000\nthe ", "a word has 1000000000000 numbers, allowed: 1 to"),
        ("a.bin", b"2 0\nthe ", "a word has 0 numbers"),
        ("a.txt.gz", gzip.compress(b"the 1 2 3\n" * 99, mtime=0)[:-9], "not a whole gzip file"),
        ("a.txt.gz", b"the 1 2 3\n", "not a whole gzip file"),
        ("a.txt", b"the 1 2 nan\n", "words whose numbers are NaN or infinite"),
        ("a.txt", "² ²\nthe 1 2 3\n".encode(), "line 1 has no 1 numbers"),
        ("a.txt", b"\n", "line 1 has no 1 numbers"),
        ("a.vec", b"3 " + b"9" * 5000 + b"\nthe 1 2 3\n", "has 1 numbers for '3', but"),
    ],
)
def test_vectors_of_a_broken_file_are_refused_in_one_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    model = build_model(
        train_settings(word_dim=3), feature_dim=4, num_words=len(WORDS), max_caption_words=5
    )
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        load_word_vectors(model, WORDS, tmp_path / name, None)


def test_a_list_of_words_that_is_no_text_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    (tmp_path / "words.txt").write_bytes(b"\xff\nthe\n")
    with pytest.raises(ValueError, match=r"words\.txt is not UTF-8 text"):
        list(read_vectors(tmp_path / "a.npy", tmp_path / "words.txt"))
