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
from pipeline.formats.files import read_json
from pipeline.formats.shard import read_index
from pipeline.formats.tensors import tensor_bytes
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
from tests.training_runs import finish, launcher, losses, stop_at, weights
from trainer.bag_index import open_index
from trainer.batch import Unreadable
from trainer.checkpoint import checkpoints, hold_folder, load_checkpoint
from trainer.distributed import World
from trainer.monitor import read_metrics
from trainer.quarantine import Quarantine, find_bad_shards
from trainer.train import main


def flip(results: Results, shard: int, *, video: int) -> None:
    """Change a bit of a video's features, or mend it again."""
    tar = results.root / f"shards/{shard:05d}.tar"
    offset = read_index(tar.with_suffix(".parquet")).rows[video].offset
    data = bytearray(tar.read_bytes())
    data[offset + 7] ^= 1
    tar.write_bytes(data)


def damage(results: Results, kind: str) -> Path:
    """Break the third shard in some way; its tar."""
    tar = results.root / "shards/00002.tar"
    bags = results.root / "bags/00002.npz"
    if kind == "missing":
        tar.unlink()
    elif kind == "short":
        tar.write_bytes(tar.read_bytes()[:-512])
    elif kind == "rotted":
        flip(results, 2, video=1)
    elif kind == "rotted in the sample":
        flip(results, 2, video=5)
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
    "rotted in the sample": "has other bytes than when it was written",
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
    if kind == "rotted in the sample":
        assert "cannot be trusted: the features of 'video 13' are damaged" in unhashed[0].reason
    else:
        assert unhashed == ([] if kind == "rotted" else [bad])


def found_by_ranks(world: World, results: Results) -> list:
    index = open_index(files_of(results))
    bad = find_bad_shards(index, world, hash_all=False)
    path = results.root / "train/quarantine.json"
    quarantine = Quarantine(path, index, bad, min_clips=1, speaks=world.first)
    quarantine.begin(world)
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


def without_shards(root: Path, *names: str, **changes) -> Results:
    """Results of three shards of three videos, of which some shards are gone."""
    results = make_results(root, videos_of_shards=(3, 3, 3))
    for name in names:
        (root / f"shards/{name}.tar").unlink()
    write_settings(results, global_batch=4, **changes)
    return results


def lines_of(results: Results) -> dict[int, dict]:
    entries = read_metrics(results.root / "train/metrics.jsonl")
    return {entry["step"]: entry for entry in entries if "split" not in entry}


BANK = {"bank_clips": 8, "bank_captions": 8, "bank_momentum": 0.9}


@pytest.mark.parametrize("changes", [{}, {"plain_accumulation": 2}, BANK])
def test_a_step_without_any_clip_has_no_loss_and_moves_nothing(tmp_path, caplog, changes):
    results = without_shards(tmp_path, "00000", "00001", **changes)
    main(results.train_arguments(validate_every=0, save_every=1, keep_checkpoints=99))
    lines = lines_of(results)
    passed = {step for step, line in lines.items() if "loss" not in line}
    assert len(lines) == 16
    assert 0 < len(passed) < 16
    assert all(lines[step]["gradient_norm"] is None for step in passed)
    assert all(np.isfinite(line["loss"]) for step, line in lines.items() if step not in passed)
    assert all(f"step {step - 1} has no clip left and is passed over" in caplog.text
               for step in passed)  # fmt: skip
    saved = {
        int(path.name[5:13]): load_checkpoint(path.read_bytes())
        for path in checkpoints(run_folder(results))
    }
    for step in range(2, 17):
        was, now = (
            [bytes(tensor_bytes(saved[s][name])) for name in ("model", "optimizer", "bank", "slow")]
            for s in (step - 1, step)
        )
        assert (was == now) == (step in passed), step


@pytest.mark.timeout(120)
def test_steps_without_any_clip_are_passed_over_by_two_ranks_and_by_a_resumed_run(tmp_path):
    expected = without_shards(tmp_path / "one", "00000", "00001")
    main(expected.train_arguments(validate_every=0))
    passed = [step for step, line in lines_of(expected).items() if "loss" not in line]
    resumed = without_shards(tmp_path / "resumed", "00000", "00001")
    stop_at(resumed, passed[1], validate_every=0)
    main(resumed.train_arguments(validate_every=0))
    assert all(torch.equal(value, weights(resumed)[n]) for n, value in weights(expected).items())
    two = without_shards(tmp_path / "two", "00000", "00001")
    status, text = finish(launcher(two, 2, validate_every=0))
    assert status == 0, text
    for other in (resumed, two):
        assert losses(other) == pytest.approx(losses(expected), abs=1e-4)
        assert not set(losses(other)) & set(passed)


def test_a_mean_over_steps_leaves_out_those_without_a_clip(tmp_path):
    each = without_shards(tmp_path / "each", "00000", "00001")
    main(each.train_arguments(validate_every=0))
    means = without_shards(tmp_path / "means", "00000", "00001")
    main(means.train_arguments(validate_every=0, log_every=8))
    assert 0 < len(losses(each)) < 16  # the others had no clip
    own = [[loss for s, loss in losses(each).items() if (s > 8) == late] for late in (False, True)]
    expected = {8 * (i + 1): np.mean(part) for i, part in enumerate(own) if part}
    assert losses(means) == pytest.approx(expected)


def test_a_first_step_without_any_clip_ends_no_run(tmp_path):
    """What a start records of its first videos is of none."""
    results = make_results(tmp_path, videos_of_shards=(1, 1, 1))
    write_settings(results, global_batch=2)
    data = step_data(results, global_batch=2)
    shard, _ = data.index.key_of(int(data.visits(0)[1][0]))
    (tmp_path / f"shards/{shard:05d}.tar").unlink()
    main(results.train_arguments(validate_every=0))
    assert 1 not in losses(results)
    assert len(losses(results)) == 8
    record = read_json(run_folder(results) / "start-step-00000000.json")["fixed_batch"]
    assert record["shapes"]["features"][0] == 0


def spoil(results: Results, video: int) -> bytes:
    """Give a video of the first shard features that are no numbers; the shard as it was."""
    tar = results.root / "shards/00000.tar"
    whole = tar.read_bytes()
    with open(tar, "r+b") as file:
        file.seek(int(read_bags(results.root / "bags/00000.npz").feature_offset[video]))
        file.write(b"\xff" * 24)
    return whole


def test_a_read_error_in_a_run_leaves_the_video_out_and_is_listed(tmp_path, caplog):
    results = make_results(tmp_path)
    spoil(results, 1)  # not one of those that a start reads whole
    with caplog.at_level(logging.WARNING):
        main(results.train_arguments())
    listed = json.loads((tmp_path / "train/quarantine.json").read_text())
    assert [video["key"] for video in listed["videos"]] == ["video%201"]
    assert "video video%201 is left out, rank 0 cannot read it" in caplog.text
    write_settings(results, min_clips=71)
    with pytest.raises(ValueError, match="training clips are left"):
        main(results.train_arguments(state=tmp_path / "again"))


def test_a_resumed_start_remembers_what_was_left_out_until_it_is_mended(tmp_path, caplog):
    results = make_results(tmp_path)
    path, whole = tmp_path / "train/quarantine.json", spoil(results, 1)
    stop_at(results, 2)  # an epoch: all videos were visited
    (left_out,) = read_json(path)["videos"]
    stop_at(results, 2)
    assert read_json(path)["videos"] == [left_out]
    assert read_json(path)["train_clips_left_out"] == left_out["clips"]
    assert f"1 videos of {path} still cannot be read" in caplog.text
    write_settings(results, min_clips=read_json(path)["train_clips"])
    with pytest.raises(ValueError, match="features that are not finite"):
        main(results.train_arguments())
    (tmp_path / "shards/00000.tar").write_bytes(whole)
    main(results.train_arguments())
    assert read_json(path)["videos"] == []


@pytest.mark.parametrize("text", ["", "[]", '{"videos": 3}', '{"videos": [{"key": 3}]}', "\xff",
                                  '{"videos": [{"key": "a", "shard": []}]}'])  # fmt: skip
def test_a_list_that_no_run_wrote_is_not_believed(tmp_path, caplog, text):
    results = make_results(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train/quarantine.json").write_bytes(text.encode("latin-1"))
    stop_at(results, 1)
    assert ("is not what a run writes" in caplog.text) == ('"shard"' not in text)
    assert read_json(tmp_path / "train/quarantine.json")["videos"] == []
