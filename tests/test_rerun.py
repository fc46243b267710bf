"""What runs again, told by the real snakemake on a tiny data set: no less, and no more.

Each test changes something in its own copy of one finished run and lists the jobs. Where training
would only cost time, jobs up to the bags run and the rest is read from a dry run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow_runs import (
    DOWNSTREAM,
    Run,
    add_video,
    checkpoints,
    copy_of,
    interrupt,
    make_data,
    processes_in,
    render,
    snakemake,
    start,
    train_starts,
    wait_for_stage,
    write_captions,
    write_config,
)

pytestmark = pytest.mark.workflow
PER_SHARD = ("manifest", "captions", "encode", "bags")
SHARDS = ("00000", "00001", "00002")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Run]:
    """One whole run. Copy its folder, never write to it."""
    base = make_data(tmp_path_factory.mktemp("workflow") / "base")
    return base, snakemake(base)


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A copy of the finished run."""
    return copy_of(finished[0], tmp_path / "run")


def settle(folder: Path) -> tuple[list[str], list[str]]:
    """Run up to the bags; return the jobs that ran, and those that are left for a whole run."""
    ran = snakemake(folder, "all_bags").jobs
    return sorted(ran), snakemake(folder, "--dry-run").jobs


def state_folders(folder: Path) -> set[str]:
    """The trainer's folders of checkpoints, one for each training."""
    return {path.name for path in (folder / "results/train").iterdir() if path.is_dir()}


def unfinished_files(folder: Path) -> list[Path]:
    """Files under their final names' scratch names."""
    return sorted((folder / "results").rglob("*.tmp"))


def outputs_of_training(folder: Path) -> list[str]:
    """What a training that did not end has published."""
    names = ("model.pt", "metrics.jsonl")
    return [name for name in names if (folder / "results/train" / name).exists()]


def wait_for_checkpoint(folder: Path, known: set[Path], run: subprocess.Popen) -> None:
    """Wait until a training has saved something new."""
    for _ in range(6000):
        if checkpoints(folder) - known:
            return
        assert run.poll() is None, (folder / "run.txt").read_text()
        time.sleep(0.02)
    raise AssertionError("no checkpoint within two minutes")


def assert_nothing_runs(folder: Path) -> None:
    """Whatever a stopped run started has ended too, or does so within seconds."""
    for _ in range(100):
        left = processes_in(folder)
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {left}")


def set_path(folder: Path, video_id: str, path: str) -> None:
    """Change a video's path in the table."""
    table = folder / "videos.csv"
    rows = [line.split(",") for line in table.read_text().splitlines()]
    lines = [",".join([row[0], path, row[2]] if row[0] == video_id else row) for row in rows]
    table.write_text("\n".join(lines) + "\n")


def test_first_run_does_everything_once(finished):
    folder, run = finished
    shards = ["00000", "00001", "00002"]
    assert run.of(*PER_SHARD) == sorted(f"{rule} {shard}" for rule in PER_SHARD for shard in shards)
    assert len(run.jobs) == len(set(run.jobs))
    others = {"plan", "captions_summary", "vocabulary", "rejected", *DOWNSTREAM}
    assert {*run.jobs} - {*run.of(*PER_SHARD, "settings")} == others
    assert (folder / "results/report/index.html").exists()
    assert unfinished_files(folder) == []


def test_second_run_does_nothing(folder):
    run = snakemake(folder)
    assert run.jobs == []
    assert "Nothing to be done" in run.text


def test_report_of_snakemake_needs_no_network(folder):
    snakemake(folder, "--report", "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert all(name in text for name in ("rejected.csv", "heldout.json", "index.html"))


def test_replaced_video_reaches_its_shard_and_no_captions(folder):
    others = {p: p.stat() for p in sorted((folder / "results/shards").glob("*")) if p.is_file()}
    render(folder / "videos/v2.mp4", 40, seconds=9)
    ran, left = settle(folder)
    assert ran == ["bags 00001", "encode 00001", "manifest 00001", "plan"]
    assert sorted(left) == sorted(["rejected", *DOWNSTREAM])
    for path, stat in others.items():
        if path.stem != "00001":
            assert path.stat().st_mtime_ns == stat.st_mtime_ns, path


def test_appended_videos_reach_the_last_shards_and_training_starts_anew(folder):
    before = state_folders(folder)
    add_video(folder, 5)
    add_video(folder, 6)
    run = snakemake(folder)
    assert run.of(*PER_SHARD) == sorted(f"{r} {s}" for r in PER_SHARD for s in ("00002", "00003"))
    assert "vocabulary" not in run.jobs
    rest = ["captions_summary", "plan", "rejected", *DOWNSTREAM]
    assert run.of(*rest) == sorted(rest)
    assert len(run.jobs) == len(rest) + 2 * len(PER_SHARD)
    # Training on other bags must not find the old run's end.
    assert len(state_folders(folder) - before) == 1
    metrics = (folder / "results/train/metrics.jsonl").read_text().splitlines()
    assert min(json.loads(line)["step"] for line in metrics) <= 1
    assert snakemake(folder, "--dry-run").jobs == []


def test_changed_captions_reach_the_bags_of_one_shard_and_encode_nothing(folder):
    write_captions(folder, 0, offset=0.25)
    ran, left = settle(folder)
    assert ran == ["bags 00000", "captions 00000", "captions_summary", "plan"]
    assert sorted(left) == sorted(DOWNSTREAM)


def test_changed_captions_table_reaches_the_shards_of_the_changed_rows(folder):
    lines = ["video_id,start,end,text"]
    for number in range(5):
        rows = (folder / f"captions/v{number}.csv").read_text().splitlines()[1:]
        lines += [f"v{number},{row}" for row in rows]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    write_config(folder, plan={"captions": "captions.csv"})
    ran, _ = settle(folder)
    per_shard = [f"{rule} {shard}" for rule in ("bags", "captions") for shard in SHARDS]
    assert ran == sorted(["captions_summary", "plan", "settings plan", *per_shard])
    lines[-1] = "v4,6.0,7.0,stir the pot"
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    ran, left = settle(folder)
    assert ran == ["bags 00002", "captions 00002", "captions_summary", "plan"]
    assert sorted(left) == sorted(DOWNSTREAM)


def test_removed_video_touches_one_shard(folder):
    set_path(folder, "v3", "")
    ran, left = settle(folder)
    per_shard = [f"{rule} 00001" for rule in PER_SHARD]
    assert ran == sorted(["plan", "captions_summary", *per_shard])
    assert sorted(left) == sorted(["rejected", *DOWNSTREAM])


def test_replaced_video_of_a_table_whose_header_has_more_commas_is_noticed(folder):
    """The delimiter is what gives the column `video_id`, not what is most frequent."""
    table = folder / "videos.csv"
    header, *rows = table.read_text().replace(",", ";").splitlines()
    lines = [f"{header};title, year, place, source", *(f"{row};x" for row in rows)]
    table.write_text("\n".join(lines) + "\n")
    assert snakemake(folder, "results/plan").jobs == ["plan"]
    assert snakemake(folder, "--dry-run").jobs == []
    render(folder / "videos/v2.mp4", 40, seconds=9)
    assert "plan" in snakemake(folder, "--dry-run").jobs


def test_caption_file_of_no_video_makes_the_report_again_and_nothing_else(folder):
    (folder / "captions/stray.csv").write_text("start,end,text\n0,1,stir it\n")
    assert sorted(snakemake(folder).jobs) == ["plan", "report"]
    assert "stray.csv" in (folder / "results/report/index.html").read_text(encoding="utf-8")


def test_plan_that_finds_nothing_new_runs_alone(folder):
    assert snakemake(folder, "-R", "plan").jobs == ["plan"]
    assert snakemake(folder, "--dry-run").jobs == []


def test_changed_keys_run_exactly_these_jobs(folder):
    """With real jobs: a key of `run`, of `train`, the bags' width, the encoder's recipe."""
    keys: dict[str, dict] = {"run": {"train": {"save_every": 7, "backend": "gloo"}}}
    write_config(folder, **keys)
    assert snakemake(folder).jobs == []
    keys["train"] = {"lr": 1.0e-3}
    write_config(folder, **keys)
    assert sorted(snakemake(folder).jobs) == sorted(["settings train", *DOWNSTREAM])
    keys["bags"] = {"bag_size": 3}
    write_config(folder, **keys)
    bags = [f"bags {shard}" for shard in SHARDS]
    assert settle(folder) == (sorted(["settings bags", *bags]), DOWNSTREAM)
    keys["encode"] = {"sampling": {"tail": "drop"}}
    write_config(folder, **keys)
    ran, left = settle(folder)
    assert ran == sorted(["settings encode", *[f"encode {shard}" for shard in SHARDS], *bags])
    assert sorted(left) == sorted(["rejected", *DOWNSTREAM])


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"evaluate": {"protocols": {"heldout": {"max_missing": 0.2}}}},
            ["settings evaluate", "evaluate heldout", "report"],
        ),
        ({"report": {"title": "Other"}}, ["settings report", "report"]),
        ({"run": {"probe_workers": 1, "encode": {"batch": 2, "threads": 1}}}, []),
        ({"run": {"train": {"nodes": 2, "gpus_per_node": 1, "max_restarts": 0}}}, []),
        ({"run": {"train": {"nodes": "1:4", "max_restarts": 1}}}, []),
        ({"run": {"track_files_up_to": 100}}, []),
    ],
    ids=["evaluate", "report", "run", "nodes", "elastic", "tracking"],
)
def test_changed_keys_reach_what_depends_on_them(folder, sections, expected):
    write_config(folder, **sections)
    assert sorted(snakemake(folder, "--dry-run").jobs) == sorted(expected)


@pytest.mark.parametrize(
    ("sections", "rules"),
    [
        ({"manifest": {"min_seconds": 0.5}}, ["manifest", "rejected", "encode", "bags"]),
        ({"captions": {"offset_seconds": 0.5}}, ["captions", "captions_summary", "bags"]),
        ({"encode": {"seed": 1}}, ["encode", "rejected", "bags"]),
        ({"vocabulary": {"min_count": 2}}, ["vocabulary", "bags"]),
        ({"bags": {"bag_window_seconds": 1.0}}, ["bags"]),
    ],
    ids=["manifest", "captions", "encode", "vocabulary", "bag_window"],
)
def test_changed_keys_of_the_data_reach_every_shard(folder, sections, rules):
    write_config(folder, **sections)
    jobs = [f"{rule} {shard}" for rule in rules if rule in PER_SHARD for shard in SHARDS]
    once = [rule for rule in rules if rule not in PER_SHARD]
    expected = [f"settings {next(iter(sections))}", *jobs, *once, *DOWNSTREAM]
    assert sorted(snakemake(folder, "--dry-run").jobs) == sorted(expected)


def test_killed_encode_after_a_settings_change_encodes_on_the_next_run(folder):
    write_config(folder, encode={"seed": 1})
    tars = {p.name: p.read_bytes() for p in sorted((folder / "results/shards").glob("*.tar"))}
    run = start(folder, "--until", "encode")
    os.kill(wait_for_stage(folder, "pipeline.encode", run), signal.SIGKILL)
    assert run.wait(timeout=120) != 0
    assert_nothing_runs(folder)
    left = snakemake(folder, "--dry-run").jobs
    assert [job for job in left if job.startswith("encode")], "the failed encode is forgotten"
    assert unfinished_files(folder) == []
    ran = snakemake(folder, "all_encode")
    assert {job.split()[0] for job in ran.jobs} == {"encode"}
    for path in sorted((folder / "results/shards").glob("*.tar")):
        assert path.read_bytes() != tars[path.name], f"{path.name} still holds the old features"
    assert [j for j in snakemake(folder, "--dry-run").jobs if j.startswith("encode")] == []


def test_what_was_deleted_is_made_again(folder):
    """Also a file on which everything hangs that is still there."""
    (folder / "results/bags/00001.npz").unlink()
    assert "bags 00001" in snakemake(folder, "--dry-run").jobs
    (folder / "results/shards/00000.tar").unlink()
    run = snakemake(folder)
    assert run.of(*PER_SHARD) == ["bags 00000", "bags 00001", "encode 00000"]
    assert snakemake(folder, "--dry-run").jobs == []


def test_until_encode_refuses_to_leave_out_new_shards(folder):
    add_video(folder, 5)
    add_video(folder, 6)
    run = snakemake(folder, "--until", "encode", status=1)
    assert "would leave out shards that are new or lost: name the target instead" in run.text
    assert run.jobs == []
    ran = snakemake(folder, "all_encode").jobs
    expected = [
        f"{rule} {shard}" for rule in ("encode", "manifest") for shard in ("00002", "00003")
    ]
    assert sorted(ran) == sorted(["plan", *expected])


def test_killed_and_interrupted_training_leaves_no_half_file_and_goes_on(folder):
    write_config(folder, train={"epochs": 150})
    saved = checkpoints(folder)
    run = start(folder)
    rank = wait_for_stage(folder, "trainer.train", run)
    wait_for_checkpoint(folder, saved, run)
    os.kill(rank, signal.SIGKILL)
    assert run.wait(timeout=120) != 0
    assert_nothing_runs(folder)
    assert outputs_of_training(folder) == []
    saved = checkpoints(folder)
    run = start(folder, "--forcerun", "train")
    wait_for_checkpoint(folder, saved, run)
    assert interrupt(run) != 0
    assert_nothing_runs(folder)
    assert outputs_of_training(folder) == []
    after = snakemake(folder)
    assert sorted(after.jobs) == sorted(DOWNSTREAM)
    assert unfinished_files(folder) == []
    killed, stopped, last = train_starts(folder)[-3:]
    assert "INFO step 1 " in killed, "the log of a run that was killed is lost"
    assert "told to stop" in stopped
    assert "INFO step 300 " in last
    assert "INFO step 1 " not in stopped + last, "it began again instead of going on"
    metrics = (folder / "results/train/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in metrics]
    assert steps == sorted(set(steps))
    assert steps[-1] == 300
    assert snakemake(folder, "--dry-run").jobs == []
