"""The table over all bag files: those of the plan alone, none missing, none foreign."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.formats.bags import read_bags
from tests.synthetic_bags import NUM_WORDS, Results, files_of, make_results, rewrite
from trainer.bag_index import files_of_plan, open_index
from trainer.batch import collate


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    return make_results(tmp_path_factory.mktemp("results"))


def test_stale_files_outside_the_plan_do_not_count(results, tmp_path):
    copy = make_results(tmp_path)
    (copy.root / "bags/00099.npz").write_bytes(b"stale")
    assert len(open_index(files_of(copy)).bags) == 3


def test_missing_bags_and_an_empty_plan_are_named(tmp_path):
    results = make_results(tmp_path)
    (results.root / "bags/00002.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"00002\.npz is missing: run snakemake"):
        open_index(files_of(results))
    with pytest.raises(FileNotFoundError, match="holds no plan"):
        files_of_plan(tmp_path / "nowhere", tmp_path, tmp_path)


def test_a_video_is_found_by_its_shard_and_key(results):
    index = open_index(files_of(results))
    for video in range(14):
        shard, key = index.key_of(video)
        assert index.video_of(str(index.shards[shard].tar), key) == video
        assert index.video_of(str(index.shards[(shard + 1) % 3].tar), key) is None


def test_a_token_id_beyond_the_vocabulary_never_reaches_a_model(tmp_path):
    results = make_results(tmp_path)
    path = results.root / "bags/00000.npz"
    ids = read_bags(path).cap_ids.copy()
    ids[:, 0] = NUM_WORDS + 1
    rewrite(path, cap_ids=ids)
    index = open_index(files_of(results))
    with pytest.raises(ValueError, match=rf"token ids span .* allowed: \[0, {NUM_WORDS}\]"):
        collate(index, np.array([0]), 0, 0)
