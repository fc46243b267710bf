"""The rules beside the commands that they run, the profiles, and what a dry run promises."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline import report_origin
from tests.workflow_runs import ROOT, copy_of, make_data, snakemake, write_config
from trainer.checkpoint import TRAINER_VERSION

RULES = {path.stem: path.read_text() for path in sorted((ROOT / "workflow/rules").glob("*.smk"))}
PROFILES = sorted((ROOT / "workflow/profiles").glob("*/profile.yaml"))


def _commands() -> dict[str, set[str]]:
    """Module to the options that the rules give it."""
    found: dict[str, set[str]] = {}
    for text in RULES.values():
        for command in re.findall(
            r'"logged \{log\} (.*?)\n\n|"shown \{log\} (.*)', text + "\n\n", re.S
        ):
            words = re.sub(r'"\s*"', "", "".join(command)).split()
            for start in [i for i, word in enumerate(words) if word == "-m"]:
                rest = words[start + 2 :]
                until = rest.index("--") if "--" in rest else len(rest)
                options = {word for word in rest[:until] if word.startswith("--")}
                found.setdefault(words[start + 1], set()).update(options)
    return found


COMMANDS = _commands()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Videos and captions on which nothing has run. Only dry runs, please."""
    return make_data(tmp_path_factory.mktemp("data") / "data")


def test_there_are_commands_to_check():
    assert {"pipeline.plan", "pipeline.encode", "trainer.launch", "trainer.train"} <= set(COMMANDS)
    assert len(COMMANDS) == 13
    assert {"--manifest", "--index", "--device"} <= COMMANDS["pipeline.encode"]


@pytest.mark.parametrize("module", sorted(COMMANDS))
def test_commands_say_what_flows_and_know_every_option_of_their_rule(module, capsys):
    with pytest.raises(SystemExit) as left:
        importlib.import_module(module).main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    known = set(re.findall(r"--[a-z][a-z-]*", text))
    assert COMMANDS[module] <= known
    description = text.split("options:")[0].split("positional arguments:")[0]
    assert len(description.split("\n\n", 1)[1].strip()) > 30, "no description"


@pytest.mark.parametrize("name", sorted(set(RULES) - {"common", "checks"}))
def test_every_command_has_a_log_an_environment_and_a_version(name):
    rules = re.split(r"^ *(?:rule|checkpoint) ", RULES[name], flags=re.MULTILINE)[1:]
    assert rules
    for rule in rules:
        assert f'"logs/{name}/' in rule
        assert "conda:" in rule
        assert ("version=" in rule) == (name != "encode")


def test_the_version_of_the_train_rule_is_that_of_the_trainer():
    """Raised together, a new trainer both trains again and leaves old checkpoints alone."""
    text = (ROOT / "workflow/rules/train.smk").read_text()
    assert re.findall(r"version=(\d+)", text) == [str(TRAINER_VERSION)]


def test_every_rule_is_timed_for_the_report():
    rule = re.compile(
        r"^ *(?:rule|checkpoint) (\w+):\n(.*?)(?=^ *(?:rule|checkpoint) |\Z)",
        re.MULTILINE | re.DOTALL,
    )
    timed = {
        name: re.findall(r'"results/benchmarks/(\w+)/', body)
        for text in RULES.values()
        for name, body in rule.findall(text)
    }
    # The report cannot time itself, and freezing a section takes no time.
    expected = {name: [name] for name in timed} | {"report": [], "settings": []}
    assert timed == expected
    assert set(timed) - {"report", "settings"} == set(report_origin.COMMANDS)


def test_style_of_the_workflow():
    for words in (["snakemake", "--lint"], ["snakefmt", "--check", "Snakefile", "workflow"]):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.workflow
def test_profiles_dry_run(data):
    for profile in PROFILES:
        run = snakemake(data, "--dry-run", "--profile", str(profile.parent))
        assert {"plan", "train", "evaluate heldout", "report"} <= set(run.jobs), profile


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.parent.name)
def test_every_entry_of_a_profile_has_a_comment(profile):
    lines = profile.read_text(encoding="utf-8").splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if re.match(r" *[\w-]+:", line) and not re.match(r"  [\w-]+:$", line):
            assert above.strip().startswith("#"), line


def test_profiles_say_how_to_run_and_retry_only_there():
    slurm = yaml.safe_load((ROOT / "workflow/profiles/slurm/profile.yaml").read_text())
    assert slurm["executor"] == "slurm"
    assert slurm["retries"] == 1
    rules = set(re.findall(r"^ *(?:rule|checkpoint) (\w+):", "\n".join(RULES.values()), re.M))
    for profile in PROFILES:
        values = yaml.safe_load(profile.read_text())
        assert set(values["set-resources"]) <= rules
        assert "config" not in values
        assert "configfile" not in values


# Waits for the others that should run beside it, and a little for those that should not.
STAND_IN = """
import sys, time
from pathlib import Path
words = dict(zip(sys.argv[1:], sys.argv[2:]))
with open("times.txt", "a", buffering=1) as file:
    file.write("start\\n")
    latest = time.monotonic() + 30
    while Path("times.txt").read_text().count("start") < AT_ONCE and time.monotonic() < latest:
        time.sleep(0.05)
    time.sleep(0.5)
    file.write("end\\n")
open(words["--output"], "w").close()
open(words["--index"], "w").close()
"""


@pytest.mark.workflow
@pytest.mark.parametrize(("options", "at_once"), [([], 8), (["--resources", "gpu=3"], 3)])
def test_workstation_encodes_on_no_more_gpus_than_there_are(data, tmp_path, options, at_once):
    """The scheduler is real; encoding is a stand-in that notes when it runs."""
    folder = copy_of(data, tmp_path / "run")
    table = [f"a{number},videos/v0.mp4" for number in range(10)]
    (folder / "videos.csv").write_text("\n".join(["video_id,path", *table, ""]))
    (folder / "captions/a0.csv").write_text("start,end,text\n0,1,stir\n")
    write_config(folder, plan={"videos_per_shard": 1}, run={"train": {"gpus_per_node": 8}})
    snakemake(folder, "results/plan", "results/settings/encode.json")
    (folder / "pipeline").mkdir()
    (folder / "pipeline/encode.py").write_text(f"AT_ONCE = {at_once}\n" + STAND_IN)
    (folder / "pipeline/__init__.py").write_text(f"__path__.append({str(ROOT / 'pipeline')!r})\n")
    (folder / "results/manifest").mkdir()
    for number in range(10):
        (folder / f"results/manifest/{number:05d}.parquet").touch()
    profile = ["--profile", str(ROOT / "workflow/profiles/workstation"), *options]
    run = snakemake(folder, *profile, "--cores", "64", "all_encode")
    running = most = 0
    for line in (folder / "times.txt").read_text().split():
        running += 1 if line == "start" else -1
        most = max(most, running)
    assert len(run.of("encode")) == 10
    assert most == at_once


def _resources(data: Path, **train: object) -> dict[str, str]:
    """The resources of the training job, as a dry run shows them."""
    write_config(data, run={"train": train})
    text = snakemake(data, "--dry-run").text
    write_config(data)
    (block,) = re.findall(r"^rule train:\n((?: {4}.*\n)*)", text, re.MULTILINE)
    (line,) = re.findall(r"resources: (.*)", block)
    return dict(pair.split("=", 1) for pair in line.split(", "))


@pytest.mark.workflow
def test_one_node_asks_for_gpus_and_no_mpi(data):
    resources = _resources(data, gpus_per_node=8, processes_per_node=8)
    assert resources["gpu"] == "8"
    assert resources["train_processes_per_node"] == "8"
    assert {"mpi", "nodes", "tasks", "gres"} & resources.keys() == set()


@pytest.mark.workflow
def test_nodes_that_come_and_go_ask_for_what_one_does(data):
    resources = _resources(data, nodes="1:4", gpus_per_node=8, max_restarts=1)
    assert resources["train_nodes"] == "1:4"
    assert resources["gpu"] == "8"
    assert {"mpi", "nodes", "tasks", "gres"} & resources.keys() == set()


@pytest.mark.workflow
def test_several_nodes_ask_for_one_launcher_on_each(data):
    resources = _resources(data, nodes=2, gpus_per_node=4, network_interface="eth0")
    expected = {"mpi": "srun", "nodes": "2", "tasks": "2", "gres": "gpu:4", "tasks_per_gpu": "0"}
    assert expected.items() <= resources.items()
    assert "gpu" not in resources
    assert resources["train_network"] == "--network-interface eth0"


@pytest.mark.workflow
def test_demo_is_rendered_only_for_the_table_that_lists_it(data, tmp_path):
    assert "demo" not in snakemake(data, "--dry-run").jobs
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "my.yaml").write_text("{}\n")
    assert "demo" in snakemake(tmp_path, "--dry-run").jobs


@pytest.mark.workflow
def test_settings_are_frozen_as_they_stand_in_the_config(tmp_path):
    folder = make_data(tmp_path / "data")
    title = 'It\'s {braces}, "quotes", $HOME, `ls` and é\\n'
    write_config(folder, report={"title": title})
    snakemake(folder, "results/settings/report.json", "results/settings/encode.json")
    report = json.loads((folder / "results/settings/report.json").read_text(encoding="utf-8"))
    assert report == {"title": title, "rejected_rows": 20}
    encode = json.loads((folder / "results/settings/encode.json").read_text(encoding="utf-8"))
    assert encode["frame_size"] == 32
    assert encode["sampling"]["frames"] == 4


CONDA = """#!/bin/sh
case "$1" in
info) echo '{"conda_prefix": "/opt/conda", "conda_version": "25.1.0", "platform": "linux-64"}';;
config) echo '{"get": {"channel_priority": "strict"}}';;
*) echo "conda 25.1.0";;
esac
"""


@pytest.mark.workflow
def test_one_conda_environment_serves_every_rule(data, tmp_path, monkeypatch):
    (tmp_path / "conda").write_text(CONDA)
    (tmp_path / "conda").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    run = snakemake(data, "--sdm", "conda", "--dry-run")
    assert {"plan", "train", "report"} <= set(run.jobs)
    assert run.text.count("Conda environment") == run.text.count("environment.yml") == 1
