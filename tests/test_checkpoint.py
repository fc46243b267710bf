"""Checkpoints: whole or not at all, damaged ones named and skipped, folders that never mix runs."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.synthetic_bags import make_results, train_settings
from trainer.bag_index import files_of_plan
from trainer.checkpoint import (
    checkpoints,
    fingerprint,
    hold_folder,
    load_checkpoint,
    newest_checkpoint,
    run_folder,
    run_identity,
    save_checkpoint,
    write_identity,
)


def content(step: int) -> dict:
    return {"step": step, "model": {"weight": torch.full((50,), float(step))}}


def test_round_trip_and_only_the_newest_are_kept(tmp_path):
    for step in (5, 10, 15, 20):
        save_checkpoint(tmp_path, content(step), keep=2)
    assert [path.name[:13] for path in checkpoints(tmp_path)] == ["step-00000020", "step-00000015"]
    loaded = load_checkpoint(newest_checkpoint(tmp_path))
    assert loaded["step"] == 20
    assert torch.equal(loaded["model"]["weight"], torch.full((50,), 20.0))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "header"])
def test_a_damaged_checkpoint_is_named_and_skipped(tmp_path, caplog, damage):
    save_checkpoint(tmp_path, content(1), keep=3)
    newest = save_checkpoint(tmp_path, content(2), keep=3)
    data = bytearray(newest.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    cut = {"cut": len(data) - 1, "flipped": len(data), "empty": 0, "header": 30}[damage]
    newest.write_bytes(data[:cut])
    with caplog.at_level(logging.WARNING):
        found = newest_checkpoint(tmp_path)
    assert load_checkpoint(found)["step"] == 1
    assert f"{newest} is damaged and skipped" in caplog.text


@pytest.mark.parametrize("saved", [60, 105, 150])
@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_after_damage_removes_the_damaged_and_never_itself(tmp_path, caplog, keep, saved):
    """Whether it is of an earlier step than the damaged ones, or of a later one."""
    for step in (40, 50, 100, 110):
        save_checkpoint(tmp_path, content(step), keep=9)
    for step in (100, 110):
        (tmp_path / f"step-{step:08d}.checkpoint").write_bytes(b"rotten")
    assert load_checkpoint(newest_checkpoint(tmp_path))["step"] == 50
    with caplog.at_level(logging.WARNING):
        save_checkpoint(tmp_path, content(saved), keep=keep)
    assert sorted(tmp_path.iterdir(), reverse=True) == checkpoints(tmp_path)
    assert [int(path.name[5:13]) for path in checkpoints(tmp_path)] == [saved, 50][:keep]
    assert load_checkpoint(newest_checkpoint(tmp_path))["step"] == saved
    for step in (100, 110):
        line = f"step-{step:08d}.damaged, damaged and skipped before, is removed: step-{saved:08d}"
        assert line in caplog.text


@pytest.mark.parametrize("keep", [1, 2])
def test_files_of_later_steps_never_outlive_the_one_that_is_saved(tmp_path, keep):
    """However they came there: the run did not go on from them."""
    for step in (40, 50, 100, 110, 60):
        save_checkpoint(tmp_path, content(step), keep=9 if step != 60 else keep)
    assert [int(path.name[5:13]) for path in checkpoints(tmp_path)] == [60, 50][:keep]


def test_without_a_good_checkpoint_there_is_nothing(tmp_path):
    assert newest_checkpoint(tmp_path / "none") == b""
    (tmp_path / "step-00000001.checkpoint").write_bytes(b"no")
    (tmp_path / "step-00000002.checkpoint.tmp").write_bytes(b"half")
    assert newest_checkpoint(tmp_path) == b""
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(b"bagpipe-checkpoint-1 00\nxx")


def make_unreadable(path: Path, kind: str, monkeypatch) -> None:
    """Put something there whose bytes nobody gets."""
    if kind == "a folder":
        path.mkdir()
    elif kind == "a dangling link":
        path.symlink_to(path.with_name("gone"))
    else:
        path.touch()
        read = Path.read_bytes

        def failing(asked):
            if asked == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return read(asked)

        monkeypatch.setattr(Path, "read_bytes", failing)


@pytest.mark.parametrize("kind", ["a folder", "a dangling link", "a disk that fails"])
def test_what_cannot_be_read_is_named_skipped_and_left_alone(tmp_path, caplog, monkeypatch, kind):
    save_checkpoint(tmp_path, content(50), keep=9)
    odd = tmp_path / "step-00000100.checkpoint"
    make_unreadable(odd, kind, monkeypatch)
    assert load_checkpoint(newest_checkpoint(tmp_path))["step"] == 50
    assert f"{odd} cannot be read (" in caplog.text
    assert os.path.lexists(odd)


@pytest.mark.parametrize("kind", ["a folder", "a dangling link"])
@pytest.mark.parametrize("saved", [60, 105])
def test_what_cannot_be_read_takes_no_good_checkpoints_place(tmp_path, monkeypatch, kind, saved):
    for step in (40, 50):
        save_checkpoint(tmp_path, content(step), keep=9)
    make_unreadable(tmp_path / "step-00000100.checkpoint", kind, monkeypatch)
    save_checkpoint(tmp_path, content(saved), keep=2)
    whole = [path for path in checkpoints(tmp_path) if path.is_file()]
    assert [int(path.name[5:13]) for path in whole] == [saved, 50]
    assert load_checkpoint(newest_checkpoint(tmp_path))["step"] == saved


def test_a_start_without_any_whole_checkpoint_says_that_it_begins_anew(tmp_path, caplog):
    assert newest_checkpoint(tmp_path) == b""
    assert caplog.text == ""
    (tmp_path / "step-00000001.checkpoint").write_bytes(b"rotten")
    assert newest_checkpoint(tmp_path) == b""
    assert f"no checkpoint in {tmp_path} is whole: training begins anew" in caplog.text


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, content(1), keep=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, content(2), keep=1)
    assert load_checkpoint(newest_checkpoint(tmp_path))["step"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_settings_and_data_decide_the_run_folder(tmp_path):
    results = make_results(tmp_path / "results")
    root = results.root

    def folder(settings):
        files = files_of_plan(root / "plan", root / "bags", root / "shards")
        return run_folder(tmp_path, run_identity(settings, files))

    first = folder(train_settings())
    assert first == folder(train_settings())
    assert first != folder(train_settings(lr=0.02))
    path = root / "bags/00000.npz"
    whole = path.read_bytes()
    path.write_bytes((root / "bags/00001.npz").read_bytes())
    assert first != folder(train_settings())
    path.write_bytes(whole)
    assert first == folder(train_settings())


def test_the_content_of_init_from_decides_the_run_folder(tmp_path):
    settings = train_settings(init_from=str(tmp_path / "model.pt"))
    identities = []
    for text in ("a", "b"):
        (tmp_path / "model.pt").write_text(text)
        identities.append(run_identity(settings, []))
    assert run_folder(tmp_path, identities[0]) != run_folder(tmp_path, identities[1])


def test_fingerprint_sees_a_single_bit():
    model = nn.Linear(3, 2)
    before = fingerprint(model)
    assert before == fingerprint(model)
    with torch.no_grad():
        model.weight[1, 2] = torch.nextafter(model.weight[1, 2], torch.tensor(9.0))
    assert before != fingerprint(model)


def hold(folder, held, done):
    lock = hold_folder(folder)
    held.set()
    done.wait(30)
    lock.close()


def test_a_folder_has_one_run_at_a_time(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, done), daemon=True)
    other.start()
    assert held.wait(60)
    with pytest.raises(ValueError, match="another training process holds"):
        hold_folder(tmp_path, patience_seconds=0.3)
    done.set()
    hold_folder(tmp_path, patience_seconds=30).close()
    other.join(30)


def die_while_saving(folder):
    save_checkpoint(folder, content(1), keep=1)
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # all is written, nothing renamed
    save_checkpoint(folder, content(2), keep=1)


def test_a_process_killed_while_it_saves_leaves_the_old_checkpoint(tmp_path):
    child = multiprocessing.get_context("fork").Process(target=die_while_saving, args=(tmp_path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert (tmp_path / "step-00000002.checkpoint.tmp").stat().st_size > 0
    assert load_checkpoint(newest_checkpoint(tmp_path))["step"] == 1
    save_checkpoint(tmp_path, content(3), keep=1)
    assert load_checkpoint(newest_checkpoint(tmp_path))["step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003.checkpoint"]


def test_a_runs_own_folder_refuses_other_settings_and_data(tmp_path):
    root = make_results(tmp_path / "results").root
    files = files_of_plan(root / "plan", root / "bags", root / "shards")
    identity = run_identity(train_settings(), files)
    folder = run_folder(tmp_path, identity)
    write_identity(folder, identity)
    assert run_folder(folder, identity) == folder
    assert run_folder(folder, run_identity(train_settings(min_clips=9), files)) == folder
    line = r"belongs to a run of other train\.lr \(0\.01 there, 0\.02 now\): set these back"
    with pytest.raises(ValueError, match=line):
        run_folder(folder, run_identity(train_settings(lr=0.02), files))
    (root / "bags/00000.npz").write_bytes((root / "bags/00001.npz").read_bytes())
    with pytest.raises(ValueError, match=r"of other bag files \(00000\)"):
        run_folder(folder, run_identity(train_settings(), files))
