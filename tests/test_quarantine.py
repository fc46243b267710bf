"""Shards that cannot be read are left out, on all ranks alike, and the rest trains on."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.formats.bags import TRAIN, read_bags
from tests.ranks import run_ranks
from tests.synthetic_bags import (
    Results,
    files_of,
    make_results,
    rewrite,
    run_folder,
    step_data,
    write_settings,
)
from tests.training_runs import stop_at
from trainer.bag_index import open_index
from trainer.batch import Unreadable
from trainer.checkpoint import hold_folder
from trainer.distributed import World
from trainer.monitor import read_metrics
from trainer.quarantine import Quarantine, find_bad_shards
from trainer.train import main


def damage(results: Results, kind: str) -> Path:
    """Break the third shard in some way; its tar."""
    tar = results.root / "shards/00002.tar"
    bags = results.root / "bags/00002.npz"
    if kind == "missing":
        tar.unlink()
    elif kind == "short":
        tar.write_bytes(tar.read_bytes()[:-512])
    elif kind == "rotted":
        data = bytearray(tar.read_bytes())
        data[len(data) // 2] ^= 1
        tar.write_bytes(data)
    elif kind == "foreign":
        rewrite(bags, metadata=read_bags(bags).metadata | {"recipe_identity": "other"})
    elif kind == "words":
        rewrite(bags, metadata=read_bags(bags).metadata | {"vocabulary_sha256": "other"})
    elif kind == "no index":
        tar.with_suffix(".parquet").unlink()
    elif kind == "cut index":
        path = tar.with_suffix(".parquet")
        path.write_bytes(path.read_bytes()[:-20])
    elif kind == "other index":
        shutil.copy(results.root / "shards/00000.parquet", tar.with_suffix(".parquet"))
    return tar


KINDS = {
    "missing": "is missing",
    "short": "bytes, not",
    "rotted": "has other bytes than when it was written",
    "foreign": "has another recipe_identity than most (other, not",
    "words": "has another vocabulary_sha256 than most (other, not",
    "no index": "has no index 00002.parquet beside it",
    "cut index": "has a bad index",
    "other index": "has an index of another tar_sha256 than its bag file",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_named_with_the_command_that_mends_it(tmp_path, kind):
    results = make_results(tmp_path)
    assert find_bad_shards(open_index(files_of(results)), World.alone(), hash_all=True) == []
    tar = damage(results, kind)
    index = open_index(files_of(results))
    (bad,) = find_bad_shards(index, World.alone(), hash_all=True)
    assert (bad.number, bad.path) == (2, str(tar))
    assert KINDS[kind] in bad.reason
    stage = {"foreign": "encode", "words": "bags"}.get(kind, tar)
    assert bad.command == f"run snakemake --cores N --forcerun {stage}"
    unhashed = find_bad_shards(index, World.alone(), hash_all=False)
    assert unhashed == ([] if kind == "rotted" else [bad])


def found_by_ranks(world: World, results: Results) -> list:
    index = open_index(files_of(results))
    bad = find_bad_shards(index, world, hash_all=False)
    path = results.root / "train/quarantine.json"
    quarantine = Quarantine(path, index, bad, min_clips=1, speaks=world.first)
    quarantine.begin()
    faults = (Unreadable(0, "bad disk"),) if world.rank == 1 else ()
    quarantine.add(world, 5, faults)
    quarantine.add(world, 6, faults)
    return [asdict(shard) for shard in bad]


@pytest.mark.timeout(90)
def test_all_ranks_leave_out_the_same(tmp_path):
    results = make_results(tmp_path / "results")
    damage(results, "short")
    (results.root / "shards/00001.tar").unlink()
    first, *others = run_ranks(found_by_ranks, 2, results, tmp_path)
    assert [shard["number"] for shard in first] == [1, 2]
    assert all(found == first for found in others)
    listed = json.loads((results.root / "train/quarantine.json").read_text())
    assert [Path(shard["path"]).name for shard in listed["shards"]] == ["00001.tar", "00002.tar"]
    (video,) = listed["videos"]
    assert (video["key"], video["rank"], video["step"]) == ("video%200", 1, 5)
    index = open_index(files_of(results))
    counts = index.clips_of_shards(TRAIN)
    assert listed["train_clips"] == counts.sum()
    assert listed["train_clips_left_out"] == counts[1:].sum() + index.clips_of(0)[1]


def test_a_bad_shard_empties_its_places_and_moves_nothing(tmp_path):
    results = make_results(tmp_path)
    whole, short = step_data(results), step_data(results)
    short.index.bad = short.bad = frozenset({2})
    for step in range(whole.schedule.num_steps):
        a, b = whole[step], short[step]
        kept = short.index.good(a.clip_keys_B3[:, 0].numpy())
        assert a.id_hash == b.id_hash
        assert torch.equal(a.clip_ids_B[kept], b.clip_ids_B)
    assert not np.isin(short.index.clips_of_split(1), np.arange(short.index._clips[2], 999)).any()


def test_training_goes_on_without_a_bad_shard_and_lists_it(tmp_path, caplog):
    results = make_results(tmp_path)
    tar = damage(results, "missing")
    with caplog.at_level(logging.INFO):
        main(results.train_arguments())
    assert f"left out: {tar} is missing; run snakemake --cores N --forcerun {tar}" in caplog.text
    entries = read_metrics(tmp_path / "train/metrics.jsonl")
    assert max(entry["step"] for entry in entries) == 8
    assert all(np.isfinite(entry["loss"]) for entry in entries if "loss" in entry)
    listed = json.loads((tmp_path / "train/quarantine.json").read_text())
    assert listed["shards"][0]["path"] == str(tar)


def test_a_start_that_is_refused_leaves_the_live_runs_list(tmp_path, monkeypatch):
    results = make_results(tmp_path)
    stop_at(results, 2)
    listed = (tmp_path / "train/quarantine.json").read_bytes()
    damage(results, "missing")
    monkeypatch.setattr("trainer.train.hold_folder", partial(hold_folder, patience_seconds=0.1))
    with (
        hold_folder(run_folder(results)),
        pytest.raises(ValueError, match="another training process holds"),
    ):
        main(results.train_arguments())
    assert (tmp_path / "train/quarantine.json").read_bytes() == listed
    main(results.train_arguments())
    assert (tmp_path / "train/quarantine.json").read_bytes() != listed


def test_too_few_clips_left_stop_the_run(tmp_path):
    results = make_results(tmp_path)
    tar = damage(results, "missing")
    write_settings(results, min_clips=60)
    line = rf"of 72 training clips are left, train\.min_clips is 60: .*{tar} is missing"
    with pytest.raises(ValueError, match=line):
        main(results.train_arguments())


def test_steps_without_any_clip_pass(tmp_path):
    """Two of three videos are gone, so that steps are empty in part or wholly."""
    results = make_results(tmp_path, videos_of_shards=(1, 1, 1))
    for name in ("00000", "00001"):
        (tmp_path / f"shards/{name}.tar").unlink()
    write_settings(results, global_batch=2, exclusion="overlap")
    main(results.train_arguments(validate_every=0))
    losses = [entry["loss"] for entry in read_metrics(tmp_path / "train/metrics.jsonl")]
    assert len(losses) == 12
    assert losses.count(0.0) >= 8  # empty steps; others may have no negative
    assert all(np.isfinite(losses))


def test_a_read_error_in_a_run_leaves_the_video_out_and_is_listed(tmp_path, caplog):
    results = make_results(tmp_path)
    tar = tmp_path / "shards/00000.tar"
    data, size = tar.read_bytes(), tar.stat().st_size
    tar.write_bytes(data[:6000])
    with open(tar, "r+b") as file:
        file.truncate(size)  # the right size, but zeros: the header of a sample is gone
    offset = int(read_bags(tmp_path / "bags/00000.npz").feature_offset[0])
    with open(tar, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 24)  # no numbers
    with caplog.at_level(logging.WARNING):
        main(results.train_arguments())
    listed = json.loads((tmp_path / "train/quarantine.json").read_text())
    assert [video["key"] for video in listed["videos"]] == ["video%200"]
    assert "video video%200 is left out, rank 0 cannot read it" in caplog.text
    write_settings(results, min_clips=71)
    with pytest.raises(ValueError, match="training clips are left"):
        main(results.train_arguments(state=tmp_path / "again"))
