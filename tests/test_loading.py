"""How many loader processes a rank gets, and what a profile of some steps leaves."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from tests.synthetic_bags import make_results
from trainer import loading
from trainer.distributed import World
from trainer.loading import choose_workers, clear_loader_faults, prefetched
from trainer.train import main


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(loading, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.parametrize(
    ("ranks", "device", "workers"),
    [(1, "cpu", 4), (2, "cpu", 2), (4, "cpu", 0), (8, "cpu", 0), (2, "cuda", 3), (8, "cuda", 0)],
)
def test_auto_gives_a_rank_the_cores_that_it_does_not_compute_on(
    eight_cores, monkeypatch, caplog, ranks, device, workers
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    with caplog.at_level(logging.INFO):
        assert choose_workers("auto", World.alone(device)) == workers
    assert f"run.train.workers auto: {workers} on 8 cores for {ranks} ranks" in caplog.text


def test_more_processes_than_cores_are_told(eight_cores, monkeypatch, caplog):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert choose_workers(2, World.alone()) == 2
    assert not caplog.text
    assert choose_workers(3, World.alone()) == 3
    assert "2 ranks × (3 loader processes + 2 threads) are more than the 8 cores" in caplog.text
    assert "lower run.train.workers to 2" in caplog.text


@pytest.mark.parametrize(
    ("workers", "device", "said"), [(0, "cuda", 1), (0, "cpu", 0), (1, "cuda", 0)]
)
def test_a_gpu_that_waits_for_loading_is_told(eight_cores, caplog, workers, device, said):
    choose_workers(workers, World.alone(device))
    assert caplog.text.count("the GPU waits while a batch is loaded") == said


def test_other_faults_than_a_loaders_keep_their_trace():
    with (
        pytest.raises(ValueError, match="loading failed: DataLoader worker"),
        clear_loader_faults(),
    ):
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.\nmore")
    with pytest.raises(RuntimeError, match="shapes"), clear_loader_faults():
        raise RuntimeError("shapes differ")


def test_without_a_gpu_batches_pass_as_they_are():
    batches = [object(), object()]
    assert list(prefetched(iter(batches), torch.device("cpu"), on=True)) == batches
    assert list(prefetched(iter(batches), torch.device("cuda"), on=False)) == batches


def test_a_profile_of_some_steps_is_a_trace_of_the_towers(tmp_path, caplog):
    results = make_results(tmp_path)
    main(results.train_arguments(profile="2:3", validate_every=0))
    (path,) = (tmp_path / "train").glob("state-*/trace-rank-0.json")
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event.get("name") == "Optimizer.step#AdamW.step"]
    assert len(steps) == 3
    assert f"a trace of some steps is in {path}" in caplog.text
    with pytest.raises(ValueError, match="--profile is 'now', expected START:STEPS"):
        main(results.train_arguments(profile="now", state=tmp_path / "again"))
