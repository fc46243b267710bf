"""The workflow on a real Slurm: what is asked of it, and what it does to a training.

One cluster of two nodes runs on this machine (tests/slurm/local_slurm.py); one data set is shared.
Jobs go through Snakemake's executor with the project's own profile, as a user sends them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.local_slurm import LocalSlurm, missing_programs
from tests.workflow_runs import (
    ROOT,
    Run,
    checkpoints,
    copy_of,
    interrupt,
    make_data,
    snakemake,
    stage_processes,
    start,
    train_starts,
    write_config,
)

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.workflow,
    pytest.mark.skipif(
        bool(missing_programs()),
        reason=f"no {', '.join(missing_programs())}: apt-get install -y slurm-wlm munge",
    ),
]

README = (ROOT / "config/README.md").read_text(encoding="utf-8")
MODEL = "results/train/model.pt"
EAGER = (str(ROOT / "tests/slurm/eager.py"),)
# The profile as it is, but with short waits: nothing is shared over a network here.
PROFILE = ["--profile", str(ROOT / "workflow/profiles/slurm"), "--latency-wait", "5"]
TWO_NODES = {"nodes": 2, "processes_per_node": 2, "gpus_per_node": 2, "backend": "gloo"}
_SUBMITTED = re.compile(r"submitted with SLURM jobid (\d+) \(log: \S*/rule_(\w+?)/")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[LocalSlurm]:
    """The cluster, spoken to by everything that these tests start."""
    slurm = LocalSlurm(folder=tmp_path_factory.mktemp("slurm"))
    slurm.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment().items():
            patch.setenv(name, value)
        try:
            yield slurm
        finally:
            slurm.stop()


@pytest.fixture(scope="module")
def sent(cluster, tmp_path_factory) -> tuple[Path, Run]:
    """One whole run through the executor, training on 2 nodes × 2 ranks. Copy it, please."""
    folder = make_data(tmp_path_factory.mktemp("sent") / "base")
    write_settings(folder, epochs=10)
    return folder, snakemake(folder, *PROFILE, program=EAGER)


@pytest.fixture
def folder(sent, tmp_path) -> Path:
    """A copy of that run in which nothing has been trained."""
    copy = copy_of(sent[0], tmp_path / "run")
    shutil.rmtree(copy / "results/train")
    return copy


def write_settings(folder: Path, *, epochs: int, **train: object) -> None:
    """One shard of five videos, four of which fill a step: one for each rank."""
    write_config(
        folder,
        plan={"videos_per_shard": 5},
        train={"epochs": epochs, "clips_per_video": 2},
        run={"train": {**TWO_NODES, "save_every": 5, **train}},
    )


def send(folder: Path, *arguments: str) -> subprocess.Popen:
    """Start snakemake with the Slurm profile."""
    return start(folder, *PROFILE, *arguments, program=EAGER)


def train_log(folder: Path) -> str:
    """What the last training job said."""
    return (folder / "logs/train/train.log").read_text()


def shown(cluster: LocalSlurm, job: str) -> str:
    """What Slurm knows of a job."""
    return cluster.ask(["scontrol", "show", "job", job])


def minutes(cluster: LocalSlurm, job: str) -> int:
    """Whole minutes for which a job has run."""
    hours, whole, _ = re.search(r"RunTime=(\d+):(\d+):(\d+)", shown(cluster, job)).groups()
    return int(hours) * 60 + int(whole)


def jobs_of_rule(text: str, rule: str) -> list[str]:
    """The Slurm jobs that a run sent for a rule, oldest first."""
    return [number for number, name in _SUBMITTED.findall(text) if name == rule]


def ended(cluster: LocalSlurm) -> dict[str, str]:
    """Job to how it ended."""
    return {job["JobId"]: job["JobState"] for job in cluster.ended_jobs()}


def losses(folder: Path) -> dict[int, float]:
    """Step to training loss, as the metrics tell."""
    lines = (folder / "results/train/metrics.jsonl").read_text().splitlines()
    return {entry["step"]: entry["loss"] for entry in map(json.loads, lines) if "loss" in entry}


def wait_until(done: Callable[[], object], what: str, *, seconds: float = 240) -> None:
    """Wait for something that must happen; four ranks take a while to start on a busy machine."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def wait_for_training(folder: Path, known: set[Path], run: subprocess.Popen) -> None:
    """Wait until ranks have saved something new."""

    def saved() -> bool:
        assert run.poll() is None, (folder / "run.txt").read_text()
        return bool(checkpoints(folder) - known)

    wait_until(saved, "a checkpoint")


def steps_said(log: str) -> list[int]:
    """The steps of a training's log."""
    return [int(step) for step in re.findall(r"INFO step (\d+) ", log)]


def test_every_stage_goes_to_its_partition_and_training_to_both_nodes(cluster, sent):
    _, run = sent
    ended = {job["JobId"]: job for job in cluster.ended_jobs()}
    facts = {rule: ended[number] for number, rule in _SUBMITTED.findall(run.text)}
    partitions = {rule: job["Partition"] for rule, job in facts.items()}
    assert partitions == {
        "manifest": "cpu", "captions": "cpu", "vocabulary": "cpu", "bags": "cpu", "report": "cpu",
        "evaluate": "cpu", "encode": "gpu", "train": "gpu",
    }  # fmt: skip
    assert {job["JobState"] for job in facts.values()} == {"COMPLETED"}
    assert all(job["NodeCnt"] == "1" for rule, job in facts.items() if rule != "train")
    train = facts["train"]
    assert (train["NodeList"], train["NodeCnt"], train["ProcCnt"]) == ("n[1-2]", "2", "4")
    assert "TresPerNode=gres:gpu:2" in shown(cluster, train["JobId"])
    assert "gpu:1" in shown(cluster, facts["encode"]["JobId"])


def test_two_nodes_with_two_ranks_train_as_four_ranks_here(sent, folder):
    assert "on each of 4 ranks" in train_log(sent[0])
    write_settings(folder, epochs=10, nodes=1, processes_per_node=4)
    snakemake(folder, MODEL)
    assert "on each of 4 ranks" in train_log(folder)
    there, here = losses(sent[0]), losses(folder)
    assert sorted(there) == sorted(here) == list(range(1, 11))
    assert here[10] == pytest.approx(there[10], rel=1e-6)
    assert here[10] < here[1]


def test_killed_rank_fails_the_job_the_retry_goes_on_and_ctrl_c_cancels(cluster, folder):
    write_settings(folder, epochs=2000)
    run = send(folder, MODEL)
    try:
        wait_for_training(folder, set(), run)
        (first,) = jobs_of_rule((folder / "run.txt").read_text(), "train")
        os.kill(stage_processes(folder, "trainer.train")[0], signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: first in ended(cluster), "the end of the job", seconds=60)
        assert time.monotonic() - killed < 20
        # Ranks of the failed job may still save something, and a Ctrl-C while the executor sends
        # the retry would miss it.
        said = folder / "run.txt"
        wait_until(lambda: len(jobs_of_rule(said.read_text(), "train")) == 2, "the retry")
        wait_for_training(folder, checkpoints(folder), run)
        assert interrupt(run) != 0
        jobs = jobs_of_rule((folder / "run.txt").read_text(), "train")
        wait_until(lambda: jobs[-1] in ended(cluster), "the end of the retry")
    finally:
        run.kill()
    assert [ended(cluster)[job] for job in jobs] == ["FAILED", "CANCELLED"]
    failed, retry = train_starts(folder)[-2:]
    assert steps_said(failed)[0] == 1, "the log of the job that failed is lost"
    assert steps_said(retry)[0] > 1, "the retry began again"
    wait_until(lambda: not stage_processes(folder, "trainer.train"), "the end of the ranks")
    assert not (folder / MODEL).exists()


def test_time_limit_saves_and_the_next_run_goes_on(cluster, folder):
    """Slurm itself sends what the profile's `--signal=TERM@120` asks for; preemption does too."""
    write_settings(folder, epochs=5000)
    run = send(folder, "--retries", "0", MODEL)
    try:
        wait_for_training(folder, set(), run)
        (job,) = jobs_of_rule((folder / "run.txt").read_text(), "train")
        # Two minutes from now, within which the signal is due; Slurm looks every 30 s.
        cluster.ask(
            ["scontrol", "update", f"JobId={job}", f"TimeLimit={minutes(cluster, job) + 2}"]
        )
        wait_until(lambda: job in ended(cluster), "the end of the job")
        assert ended(cluster)[job] == "FAILED", "it should end by itself, before Slurm kills it"
        assert run.wait(timeout=60) != 0
    finally:
        run.kill()
    (saved,) = re.findall(r"told to stop: saved step (\d+) of 5000", train_log(folder))
    assert not (folder / MODEL).exists()
    write_settings(folder, epochs=5000, nodes=1, processes_per_node=4)
    run = start(folder, MODEL)
    try:
        wait_for_training(folder, checkpoints(folder), run)
        assert interrupt(run) != 0
    finally:
        run.kill()
    assert steps_said(train_log(folder))[0] == int(saved) + 1


def test_job_of_the_readme_is_requeued_and_goes_on(cluster, folder, monkeypatch):
    write_settings(folder, epochs=1000)
    snakemake(folder, "results/settings/train.json")
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", README, re.DOTALL)
    smaller = [
        ("gres=gpu:8", "gres=gpu:2"), ("cpus-per-task=32", "cpus-per-task=2"),
        ("--processes 8", "--processes 2"), ("--threads 32", "--threads 2"),
        ("--backend auto", "--backend gloo"), ("--save-every 500", "--save-every 5"),
        ("--log-every 50", "--log-every 1"),
    ]  # fmt: skip
    for here, there in smaller:
        assert here in script
        script = script.replace(here, there)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (folder / "train.sh").write_text(script)
    job = cluster.ask(["sbatch", "--parsable", "--chdir", str(folder), str(folder / "train.sh")])
    output = folder / f"slurm-{job}.out"
    wait_until(lambda: checkpoints(folder), "a checkpoint")
    cluster.ask(["scancel", "--signal=TERM", job])
    # It waits for `cred_expire` of tests/slurm/local_slurm.py, 15 s, before it starts again.
    wait_until(lambda: "Restarts=1" in shown(cluster, job), "the requeue", seconds=60)
    (saved,) = re.findall(r"told to stop: saved step (\d+) of 1000", output.read_text())
    before = len(steps_said(output.read_text()))
    wait_until(lambda: len(steps_said(output.read_text())) > before, shown(cluster, job))
    cluster.ask(["scancel", job])
    wait_until(lambda: ended(cluster).get(job) == "CANCELLED", "the end of the job")
    steps = steps_said(output.read_text())
    assert (steps[0], steps[before]) == (1, int(saved) + 1)
    assert output.read_text().count("on each of 4 ranks") == 2


def test_unknown_partition_is_named_at_once(cluster, folder):
    words = ["--set-resources", "train:slurm_partition=nowhere", "--retries", "0"]
    run = snakemake(folder, *PROFILE, *words, MODEL, status=1, program=EAGER)
    assert "invalid partition specified: nowhere" in run.text
    assert jobs_of_rule(run.text, "train") == []


def test_more_nodes_than_the_partition_has_wait_and_squeue_says_why(cluster, folder):
    write_settings(folder, epochs=1, nodes=3)
    run = send(folder, MODEL)
    try:
        wait_until(lambda: jobs_of_rule((folder / "run.txt").read_text(), "train"), "a job")
        (job,) = jobs_of_rule((folder / "run.txt").read_text(), "train")
        reason = ["squeue", "-h", "-j", job, "-o", "%r"]
        wait_until(lambda: cluster.ask(reason).startswith("Partition"), "the reason")
        interrupt(run)
        wait_until(lambda: job in ended(cluster), "the end of the job")
    finally:
        run.kill()
    assert ended(cluster)[job] == "CANCELLED"
