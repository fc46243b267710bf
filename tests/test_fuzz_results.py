"""Files of a results folder that were cut, flipped or made up: read, or refused in one line.

Also for damage that nobody else would notice, a reader's answer may be used: every index lies in
its table, every place in its file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.encoders.s3d_weights import read_state
from pipeline.formats.bags import Bags, bags_digest, read_bags
from pipeline.formats.caption_summary import read_caption_summary
from pipeline.formats.captions import read_captions
from pipeline.formats.embeddings import ClipEmbeddings, read_embeddings, write_embeddings
from pipeline.formats.files import read_json
from pipeline.formats.manifest import read_manifest
from pipeline.formats.partial import read_any_partial, write_partial
from pipeline.formats.plan import read_unmatched
from pipeline.formats.shard import read_features, read_index, read_index_facts
from pipeline.tools.info import describe
from pipeline.tools.verify import check_shard
from tests.encoded_videos import video
from tests.fuzzing import bounded_memory, damaged, read_or_refuse, replaced
from tests.synthetic_bags import train_settings
from tests.tiny_results import FEATURE_DIM, RECIPE, WORDS, make_results
from trainer.bag_index import files_of_plan, open_index
from trainer.checkpoint import MAGIC, load_checkpoint, save_checkpoint
from trainer.distributed import World
from trainer.model import build_model, load_model, save_model
from trainer.quarantine import Quarantine
from trainer.word_vectors import read_vectors

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:Duplicate name")
NUMBERS = [b"(3, ", b"(9,", b"<i4", b"<f8", b"|S3", b"False", b"feature", b"recipe", b"1"]
HOSTILE = [
    b"(1000000000000, ", b"(-9,", b"(9999999999999999999999,", b"|O8", b"<U9", b"True", b"<c16",
    b"(0,",
    b"../../../x", b"/x", b"\0", b"9" * 400, b"NaN", b"null", b"", b"((((((((", b"\xff\xff\xff\xff",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A whole results folder."""
    return make_results(tmp_path_factory.mktemp("fuzz") / "results").root


@pytest.fixture(scope="module")
def scratch(root) -> Path:
    """Beside it, where each example overwrites the files of the one before it."""
    folder = root.parent / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def nothing_is_written(root, scratch):
    """Whatever a file says, a reader writes nothing anywhere near."""
    before = sorted(path for path in root.parent.rglob("*") if path.parent != scratch)
    yield
    assert sorted(path for path in root.parent.rglob("*") if path.parent != scratch) == before


def any_damage(whole: Path) -> st.SearchStrategy[bytes]:
    wholes = [whole.read_bytes()]
    return damaged(wholes) | replaced(wholes, NUMBERS, HOSTILE)


def use(bags: Bags) -> None:
    """Look up everything that training looks up."""
    for clip in range(bags.num_clips):
        rows = bags.bag_idx[clip][bags.bag_idx[clip] >= 0]
        assert bags.cap_ids[rows].shape[1] == bags.cap_ids.shape[1]
        last = bags.clip_feature_start[clip] + bags.clip_feature_count[clip]
        assert 0 < last <= bags.feature_count[bags.clip_video[clip]]
    assert isinstance(bags.metadata["recipe"], dict)


@given(data=st.data())
def test_bags(root, scratch, data):
    path = scratch / "00000.npz"
    path.write_bytes(data.draw(any_damage(root / "bags/00000.npz")))
    bags = read_or_refuse(lambda: read_bags(path), naming=path)
    if bags is not None:
        use(bags)
    read_or_refuse(lambda: bags_digest(path), naming=path)
    read_or_refuse(lambda: describe(path), naming=path)


@given(st.sampled_from(["../../x", "/x", "a/b", "", "metadata", "bag_idx", "ü"]), st.binary())
def test_members_of_bags_are_names_and_no_paths(root, scratch, name, content):
    path = scratch / "00000.npz"
    path.write_bytes((root / "bags/00000.npz").read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", content)
    read_or_refuse(lambda: read_bags(path), naming=path)


LISTED = json.dumps({"videos": [{"key": "a", "shard": "x/00000.tar", "rank": 0, "step": 3}]})


@given(text=damaged([LISTED.encode()]) | replaced([LISTED.encode()], [b"0", b'"a"'], HOSTILE))
def test_what_a_run_left_out_before(root, scratch, text):
    """A list that is damaged is taken for none."""
    (scratch / "quarantine.json").write_bytes(text)
    index = open_index(files_of_plan(root / "plan", root / "bags", root / "shards"))
    quarantine = Quarantine(scratch / "quarantine.json", index, [], min_clips=1, speaks=True)
    quarantine.begin(World.alone())
    assert read_json(scratch / "quarantine.json")["videos"] == []


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("shards/00000.parquet", read_index),
        ("shards/00000.parquet", read_index_facts),
        ("manifest/00000.parquet", read_manifest),
        ("captions/00000.parquet", read_captions),
        ("captions/summary.json", read_caption_summary),
        ("plan/unmatched.json", lambda path: read_unmatched(path.parent)),
        ("settings/bags.json", read_json),
    ],
)
@given(data=st.data())
def test_a_table_or_json_of_ours(root, scratch, name, reader, data):
    path = scratch / Path(name).name
    path.write_bytes(data.draw(any_damage(root / name)))
    read_or_refuse(lambda: reader(path), naming=path)


@given(data=st.data())
def test_a_shard(root, scratch, data):
    """`verify` says what is wrong with it, and rows are read from where its index says."""
    tar, index = scratch / "00000.tar", scratch / "00000.parquet"
    which = data.draw(st.sampled_from([tar, index]))
    for path in (tar, index):
        whole = root / f"shards/{path.name}"
        path.write_bytes(data.draw(any_damage(whole)) if path == which else whole.read_bytes())
    found = read_or_refuse(lambda: check_shard(tar, fast=False), naming=None)
    assert all(isinstance(fault, str) for fault in found[1])
    if which == tar and tar.read_bytes() != (root / "shards/00000.tar").read_bytes():
        assert found[1]
    rows = found[0].rows if found[0] else []
    with open(tar, "rb") as file:
        for row in rows:
            read_or_refuse(
                lambda row=row: read_features(
                    file.fileno(), row.offset, row.feature_dim, 0, row.num_vectors
                ),
                naming=None,
            )


@pytest.mark.parametrize("name", ["metrics.jsonl", "found.json", "00000.tsv", "vocabulary.txt"])
@given(data=st.data())
def test_what_info_says_of_any_file(root, scratch, name, data):
    lines = b'{"step": 1, "loss": 2.5}\n{"step": 2, "split": "val"}\n'
    found = b'{"format": "bagpipe-retrieval-2", "protocol": {"name": "a"}, "num_pairs": 1}'
    texts = [lines, found, (root / "plan/00000.tsv").read_bytes()]
    path = scratch / name
    words, by = [b"{", b"1", b'"a"', b'{"name": "a"}', b"step", b"\n"], [b"7", b"null", b'"', b"[]"]
    path.write_bytes(data.draw(damaged(texts) | replaced(texts, words, by + HOSTILE)))
    read_or_refuse(lambda: describe(path), naming=path)


huge = st.sampled_from([0, 1, -1, 6, 10**6, 10**12, 2**62, 2**63 - 1, -(2**63)])


@given(offset=huge, dim=huge, start=huge, count=huge)
def test_rows_of_any_place_and_size(root, offset, dim, start, count):
    with open(root / "shards/00000.tar", "rb") as file:
        rows = read_or_refuse(
            lambda: read_features(file.fileno(), offset, dim, start, count), naming=None
        )
    assert rows is None or rows.nbytes <= os.path.getsize(root / "shards/00000.tar")


@pytest.fixture(scope="module")
def embeddings(root) -> tuple[Path, Path]:
    tags = {"model_sha256": "a", "bags_digest": "b", "recipe_identity": "c", "embedding_dim": 9}
    whole = ClipEmbeddings(np.ones((3, 9), np.float32), ["a", "b", "b"], [0.0] * 3, [1.0] * 3, tags)
    paths = root / "embeddings/00000.npy", root / "embeddings/00000.parquet"
    write_embeddings(*paths, whole)
    return paths


@given(data=st.data())
def test_embeddings(embeddings, scratch, data):
    paths = scratch / "00000.npy", scratch / "00000.parquet"
    which = data.draw(st.integers(0, 1))
    for number, (whole, path) in enumerate(zip(embeddings, paths, strict=True)):
        path.write_bytes(data.draw(any_damage(whole)) if number == which else whole.read_bytes())
    found = read_or_refuse(lambda: read_embeddings(*paths), naming=scratch)
    if found is not None:
        assert found.vectors_CD.shape == (len(found.video_ids), found.tags["embedding_dim"])
        assert found.vectors_CD.sum() is not None


@pytest.fixture(scope="module")
def partial(root) -> Path:
    write_partial(root / "partial", video("a"), "recipe")
    return next((root / "partial").iterdir())


@given(data=st.data())
def test_a_finished_video(partial, scratch, data):
    path = scratch / "partial.npz"
    path.write_bytes(data.draw(any_damage(partial)))
    found = read_or_refuse(lambda: read_any_partial(path), naming=path)
    if found is not None:
        assert np.array_equal(found[0].features, video("a").features)


@pytest.fixture(scope="module")
def model(root) -> Path:
    settings = train_settings(embedding_dim=4, word_dim=3, text_hidden=4)
    made = build_model(settings, feature_dim=FEATURE_DIM, num_words=len(WORDS), max_caption_words=5)
    path = root / "train/model.pt"
    save_model(path, made, vocabulary=WORDS, recipe=RECIPE.to_dict(), step=3, max_caption_words=5)
    return path


@given(data=st.data())
def test_a_model(model, scratch, data):
    path = scratch / "model.pt"
    path.write_bytes(data.draw(any_damage(model)))
    read_or_refuse(lambda: load_model(path), naming=path)
    read_or_refuse(lambda: describe(path), naming=path)


WRONG = [None, 1, -1, 10**12, "a", [], {}, 1.5]


@given(data=st.data())
def test_a_model_of_which_a_part_is_wrong(model, scratch, data):
    """Whole for torch, and yet no model: a size is never believed before the weights fit it."""
    content = torch.load(model, weights_only=True)
    section = content
    for step in data.draw(st.sampled_from([(), ("settings",), ("recipe",), ("state",)])):
        section = section[step]
    key = data.draw(st.sampled_from(sorted(section)))
    if data.draw(st.booleans()):
        section[key] = data.draw(st.sampled_from([*WRONG, torch.zeros(2, 3)]))
    else:
        del section[key]
    path = scratch / "model.pt"
    torch.save(content, path)
    read_or_refuse(lambda: load_model(path), naming=path)


@pytest.fixture(scope="module")
def weights(root) -> Path:
    """As other people's files come: the old form of torch.save."""
    path = root / "weights.pth"
    state = {"module.a.weight": torch.ones(3, 4), "module.b": torch.arange(5)}
    torch.save({"state_dict": state}, path, _use_new_zipfile_serialization=False)
    return path


@given(data=st.data())
def test_weights_of_other_people(weights, scratch, data):
    path = scratch / "weights.pth"
    path.write_bytes(data.draw(any_damage(weights)))
    read_or_refuse(lambda: read_state(path), naming=path)


@pytest.fixture(scope="module")
def checkpoint(root) -> bytes:
    content = {"step": 5, "model": {"w": torch.ones(9)}, "data": [1, 2], "rng": torch.arange(4)}
    return save_checkpoint(root / "state", content, keep=1).read_bytes()


@given(data=st.data())
def test_a_checkpoint_is_whole_or_damaged(checkpoint, data):
    found = data.draw(damaged([checkpoint]))
    if found != checkpoint:
        with bounded_memory(), pytest.raises(ValueError, match="a checkpoint is damaged"):
            load_checkpoint(found)


@given(data=st.data())
def test_a_checkpoint_whose_sum_holds_may_still_be_foreign(checkpoint, data):
    payload = data.draw(damaged([checkpoint.partition(b"\n")[2]]))
    digest = hashlib.sha256(payload).hexdigest().encode()
    found = MAGIC + b" " + digest + b"\n" + payload
    read_or_refuse(lambda: load_checkpoint(found), naming="a checkpoint")


@pytest.fixture(scope="module")
def matrix(root) -> Path:
    np.save(root / "words.npy", np.ones((3, 9), np.float32))
    (root / "words.txt").write_text("stir\nit\nfold\n")
    return root / "words.npy"


@given(data=st.data())
def test_a_matrix_of_word_vectors(matrix, scratch, data):
    path = scratch / "words.npy"
    path.write_bytes(data.draw(any_damage(matrix)))
    words = matrix.with_suffix(".txt")
    read_or_refuse(lambda: list(read_vectors(path, words)), naming=path)


def test_code_in_a_weights_file_does_not_run(scratch, weights):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(scratch / "ran"),)

    buffer = io.BytesIO()
    torch.save({"a": Evil()}, buffer)
    (scratch / "evil.pth").write_bytes(buffer.getvalue())
    assert read_or_refuse(lambda: read_state(scratch / "evil.pth"), naming="evil.pth") is None
    assert not (scratch / "ran").exists()
