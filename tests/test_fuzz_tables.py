"""Tables and lists that users bring: rows, or one line that names the file; also hostile ids."""

from __future__ import annotations

import csv
import math
import string
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.captions import Caption, read_captions, write_captions
from pipeline.formats.feature_files import find_arrays, read_array
from pipeline.formats.names import sample_key, video_id_of
from pipeline.formats.partial import partial_path
from pipeline.formats.plan import read_planned_captions, read_planned_videos
from pipeline.formats.shard import read_index
from pipeline.formats.shard_writer import write_shard
from pipeline.formats.tokenizer import encode_caption, tokenize
from pipeline.formats.videos import read_videos
from pipeline.formats.vocabulary import read_vocabulary
from pipeline.inspection import read_deny_list
from pipeline.vocabulary import read_word_list
from tests.encoded_videos import RECIPE, video
from tests.fuzzing import damaged, read_or_refuse, replaced
from trainer.clip_list import read_test_rows
from trainer.word_vectors import read_vectors
from trainer.word_vectors import read_word_list as read_matrix_words

VIDEOS = 'video_id,path,split\na,a.mp4,train\n"b ""c""",ü.mp4,val\nd,,\n'
CLIPS = "end,start,task,text,video_id\n2.5,1,9,stir it,a\n4,3,9,fold,b\n"
PAIRS = "key,vid_key,video_id,sentence\nret0,msr1,a,stir it\nret1,msr2,b,fold\n"
DENIED = "video_id,why\na,asked\nb,\n"
PLAN = "#bagpipe-plan-1\tpath\tsplit\tsize_bytes\tmtime_ns\na\ta.mp4\ttrain\t7\t9\nb\t\t\t-1\t-1\n"
SOURCES = "#bagpipe-captions-1\tpath\tsize_bytes\tmtime_ns_or_sha256\na\ta.vtt\t7\t9\n"
WORDS = "#bagpipe-vocabulary-1\nstir\nit\ncrème\n"
GLOVE = "stir 0.1 0.2 0.3\ncrème 1 2 3\n. . . -1e-3 0 1\n"
WORD2VEC = b"2 3\nstir " + np.ones(3, "<f4").tobytes() + b"\nit " + np.zeros(3, "<f4").tobytes()
READERS = {
    "videos.csv": (read_videos, [VIDEOS.encode(), VIDEOS.encode("utf-8-sig")]),
    "clips.csv": (read_test_rows, [CLIPS.encode(), PAIRS.encode()]),
    "deny.csv": (read_deny_list, [DENIED.encode(), b"a\nb\n"]),
    "plan.tsv": (read_planned_videos, [PLAN.encode()]),
    "plan.captions": (read_planned_captions, [SOURCES.encode()]),
    "vocabulary.txt": (read_vocabulary, [WORDS.encode()]),
    "list.txt": (read_word_list, [b"stir\nit\ncr\xc3\xa8me\n"]),
    "matrix.txt": (read_matrix_words, [b"stir\nit\ncr\xc3\xa8me\n"]),
    "glove.txt": (lambda path: list(read_vectors(path, None)), [GLOVE.encode()]),
    "fasttext.vec": (lambda path: list(read_vectors(path, None)), [b"3 3\n" + GLOVE.encode()]),
    "words.bin": (lambda path: list(read_vectors(path, None)), [WORD2VEC]),
}
PLACES = [b"a", b"1", b"2", b"3", b"7", b"-1", b"\n", b",", b"\t", b'"', b"stir", b"path"]
HOSTILE = [
    b"../../etc/passwd", b"/", b"..", b"\0", b"\xff", b"\r", b'"', b"nan", b"1e999", b"9" * 5000,
    b"1000000000000", b"-9" * 12, b"x" * 200_000, b"\xe2\x80\xa8", b"\xc2\xb2", b"", b"\n\n",
    b",,,,",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Each example overwrites the file of the one before it."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_a_table_or_list(folder, name, data):
    reader, wholes = READERS[name]
    path = folder / name
    damage = damaged(wholes) | replaced(wholes, PLACES, HOSTILE) | st.binary(max_size=200)
    path.write_bytes(data.draw(damage))
    found = read_or_refuse(lambda: reader(path), naming=path)
    if name == "clips.csv":
        for row in found or []:
            assert row.video_id
            assert row.end - row.start >= 0 or not math.isfinite(row.end)


@pytest.fixture(scope="module")
def parquets(folder) -> list[bytes]:
    """Videos tables in parquet, one of them with ids that are numbers."""
    found = []
    for ids in (["a", "b"], [1, 2], [None, "b"], [b"\xff", b"b"]):
        table = pa.table({"video_id": ids, "path": ["a.mp4", None], "split": ["train", ""]})
        pq.write_table(table, folder / "whole.parquet")
        found.append((folder / "whole.parquet").read_bytes())
    return found


@given(data=st.data())
def test_a_parquet_of_videos(folder, parquets, data):
    path = folder / "videos.parquet"
    path.write_bytes(data.draw(damaged(parquets) | st.sampled_from(parquets)))
    read_or_refuse(lambda: read_videos(path), naming=path)


@pytest.fixture(scope="module")
def arrays(folder) -> list[bytes]:
    """Feature files of other tools."""
    features = np.ones((5, 6), np.float16)
    np.save(folder / "a.npy", features)
    np.savez(folder / "a.npz", features=features)
    np.savez_compressed(folder / "b.npz", features=features, more=np.arange(3))
    np.save(folder / "words.npy", np.array(["a", "b"]))
    return [(folder / name).read_bytes() for name in ("a.npy", "a.npz", "b.npz", "words.npy")]


SHAPE = [b"(5, 6)", b"<f2", b"False", b"descr"]
SHAPES = [
    b"(10**12,6)", b"(9999999999, 6)", b"(-5, -6)", b"(0, 10)", b"(99999999999999999999999, 0)",
    b"((((((", b"|O", b"<f8", b"S0", b"V0", b"True", b"{", b"(True, 6)", b"(5.0, 6)", b"'",
]  # fmt: skip


@given(data=st.data())
def test_the_features_of_other_tools(folder, arrays, data):
    path = folder / "other"
    path.write_bytes(data.draw(damaged(arrays) | replaced(arrays, SHAPE, SHAPES)))
    found = read_or_refuse(lambda: read_array(path, 6), naming=None)
    assert found is None or (found.dtype == np.float16 and np.isfinite(found).all())


hostile_ids = st.one_of(
    st.sampled_from(
        ["../../x", "/etc/passwd", ".", "..", "~", "a/../../b", "con", "%2e%2e", "-rf"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    st.text(st.sampled_from("./\\%ü💥"), min_size=1, max_size=400),
)


@given(hostile_ids)
def test_no_id_leaves_its_folder_or_loses_itself(folder, video_id):
    key = sample_key(video_id)
    assert set(key) <= set(string.ascii_letters + string.digits + "-_%")
    assert video_id_of(key) == video_id
    assert partial_path(folder, video_id).parent == folder
    assert all(path.parent == folder for path in find_arrays(folder, video_id))


@given(st.lists(hostile_ids, min_size=1, max_size=4, unique=True))
def test_shards_and_captions_hold_any_id(tmp_path_factory, ids):
    folder = tmp_path_factory.mktemp("ids")
    inner = folder / "inner"
    write_shard(inner / "1.tar", inner / "1.parquet", map(video, ids), RECIPE, {})
    assert [row.video_id for row in read_index(inner / "1.parquet").rows] == ids
    captions = [Caption(video_id, 0.0, 1.0, video_id) for video_id in sorted(ids)]
    write_captions(inner / "c.parquet", captions, {})
    assert read_captions(inner / "c.parquet")[0] == captions
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "1.parquet", "1.tar", "c.parquet"
    ]  # fmt: skip


@given(st.lists(st.tuples(hostile_ids, hostile_ids), min_size=1, max_size=5))
def test_a_videos_table_says_back_what_it_was_given_or_names_the_line(folder, rows):
    path = folder / "table.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("video_id", "path"), *rows])
    found = read_or_refuse(lambda: read_videos(path), naming=path)
    assert found is None or [(entry.video_id, entry.path) for entry in found] == rows


@given(st.text() | st.text(st.characters(categories=["L", "M", "N", "Lm", "Sk"])))
def test_words_of_any_text_are_their_own_words(text):
    words = tokenize(text)
    assert tokenize(text) == words
    assert tokenize(" ".join(words)) == words
    assert all(word and not set(word) & set(" \n\t_") for word in words)
    ids = {word: place for place, word in enumerate(dict.fromkeys(words), start=1)}
    assert encode_caption(text, ids, 1000) == [ids[word] for word in words[:1000]]


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_ascii_are_the_same_beside_other_letters(text):
    assert tokenize(f"{text} é") == [*tokenize(text), "é"]
