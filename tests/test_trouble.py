"""What can befall one of several ranks: all end soon, and one clear line says why."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.formats.files import read_json
from tests import training_runs
from tests.synthetic_bags import results_with
from tests.training_runs import (
    ROOT,
    checkpoint_steps,
    descendants,
    finish,
    launcher,
    logged_step,
    losses,
    ranks_alone,
    ranks_below,
    stop_at,
    wait_until,
)
from trainer.train import main

LONG = {"epochs": 400}


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.timeout(90)
def test_a_port_that_something_silent_holds_ends_every_rank(tmp_path, monkeypatch):
    results = results_with(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(training_runs, "free_port", lambda: server.getsockname()[1])
        ranks = ranks_alone(results, 2, timeout_seconds=2)
        ends = [finish(rank, 60) for rank in ranks]
    for rank, (status, text) in enumerate(ends):
        assert status == 1
        assert f"rank {rank} of 2 could not join the others within 2 s" in last_line(text)
        assert "firewalls and used ports" in last_line(text)
    assert "address already in use" in ends[0][1]


@pytest.mark.timeout(120)
def test_a_rank_that_dies_before_the_first_step_ends_the_others(tmp_path):
    results = results_with(tmp_path, **LONG)
    process = launcher(results, 2)
    wait_until(lambda: len(ranks_below(process.pid)) == 2, process)
    os.kill(ranks_below(process.pid)[1], signal.SIGKILL)
    status, text = finish(process, 60)
    assert status == 1
    assert "names the first to end; exit code -9 is a kill" in last_line(text)
    assert "exitcode  : -9" in text
    assert logged_step(results) == 0


@pytest.mark.timeout(120)
def test_a_rank_whose_launcher_died_while_it_imported_does_not_train_on_alone(tmp_path):
    """The rank cannot have asked Linux for a signal yet."""
    results = results_with(tmp_path, **LONG)
    process = launcher(results, 1, save_every=1)
    wait_until(lambda: bool(ranks_below(process.pid)), process)
    (rank,) = ranks_below(process.pid)
    agent = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    _, text = finish(process, 60)  # the rank holds the same stderr: this waits for its end too
    assert f"process {agent}, which started this one, is gone" in text
    assert checkpoint_steps(results) == []


@pytest.mark.timeout(120)
def test_a_bag_file_that_is_cut_under_a_run_is_named_as_the_cause(tmp_path):
    results = results_with(tmp_path, **LONG)
    process = launcher(results, 1)
    wait_until(lambda: logged_step(results) > 3, process)
    os.truncate(tmp_path / "bags/00000.npz", 10)
    status, text = finish(process, 60)
    assert status == 1
    assert "exitcode  : -7" in text
    assert "-7 (SIGBUS) a mapped file that became shorter under it: a bag file" in last_line(text)


@pytest.mark.timeout(120)
def test_a_step_that_is_not_finite_is_not_tried_again_in_place(tmp_path):
    """Another start would go on from the last checkpoint, only to end at the same step."""
    results = results_with(tmp_path, lr=1e30, warmup_samples=0, grad_clip=1e30, normalize=False)
    status, text = finish(launcher(results, 2, max_restarts=2), 100)
    assert status == 1
    assert "python -m trainer.train --replay" in last_line(text)
    said = [line for line in text.splitlines() if "Usual causes: lr" in line]
    assert len(said) == 2, "rank 0 says it once, and the launcher at the end"
    assert text.count(" an epoch; ") == 1, "it began again"


@pytest.mark.timeout(120)
def test_a_killed_loader_process_ends_both_ranks_and_the_next_start_goes_on(tmp_path):
    results = results_with(tmp_path, **LONG)
    process = launcher(results, 2, workers=1, save_every=1, validate_every=0)
    wait_until(lambda: logged_step(results) > 5, process)
    loaders = [
        pid
        for pid in descendants(process.pid)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(loaders) == 2
    began = time.monotonic()
    os.kill(loaders[0], signal.SIGKILL)
    status, text = finish(process, 60)
    assert time.monotonic() - began < 45
    assert status == 1
    assert "loading failed: " in last_line(text)
    stop_at(results, checkpoint_steps(results)[-1] + 1)


@pytest.mark.timeout(120)
def test_a_full_disk_ends_both_ranks_and_leaves_the_old_checkpoint(tmp_path):
    results = results_with(tmp_path)
    stop_at(results, 3)
    saved = next((tmp_path / "train").glob("state-*/step-*.checkpoint"))
    room = saved.stat().st_size - 1000
    argv = ["-m", "trainer.launch", "--processes", "2", "--threads", "2", "--", "-m"]
    argv += ["trainer.train", *results.train_arguments(validate_every=0)]
    done = subprocess.run(
        [sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )  # fmt: skip
    assert done.returncode == 1
    assert "saving failed on rank 0" in last_line(done.stderr)
    assert "step-00000004.checkpoint" in last_line(done.stderr)
    assert "cannot be written: File too large. Make room" in last_line(done.stderr)
    assert checkpoint_steps(results) == [3]
    main(results.train_arguments())
    assert max(losses(results)) == 8


@pytest.mark.timeout(120)
def test_a_cut_shard_stops_no_rank_and_a_rank_that_hangs_ends_the_others(tmp_path):
    results = results_with(tmp_path, **LONG)
    ranks = ranks_alone(results, 2, timeout_seconds=10)
    wait_until(lambda: logged_step(results) > 3, ranks[0])
    os.truncate(results.root / "shards/00002.tar", 2000)
    listed = results.root / "train/quarantine.json"
    wait_until(lambda: len(read_json(listed)["videos"]) >= 2, ranks[0])
    step = logged_step(results)
    wait_until(lambda: logged_step(results) > step + 5, ranks[0])
    ranks[1].send_signal(signal.SIGSTOP)
    status, text = finish(ranks[0], 60)
    ranks[1].kill()
    finish(ranks[1])
    assert status == 1
    assert "rank 0 lost the other ranks while" in last_line(text)
    assert "Check: the ranks' own lines above" in last_line(text)
    assert "is left out, rank " in text
