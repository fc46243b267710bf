"""The launcher's command lines, what it asks Slurm, its errors, and the signals it passes on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.synthetic_bags import make_results
from trainer.launch import (
    Launch,
    Meeting,
    command_line,
    find_meeting,
    main,
    node_address,
    rank_environment,
    start,
)

ROOT = Path(__file__).parents[1]


def launch(**changes) -> Launch:
    values = {
        "nodes": 1, "processes": 2, "threads": 5, "max_restarts": 1, "network_interface": None,
        "command": ["-m", "trainer.train", "--settings", "a b.json"],
    }  # fmt: skip
    return Launch(**(values | changes))


def test_one_node_is_torchrun_standalone():
    assert command_line(launch(), None) == [
        "sh", "-c", 'BAGPIPE_AGENT=$$ exec "$0" "$@"',
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--max-restarts", "1", "--log-dir", "/dev/null",
        "-m", "trainer.train", "--settings", "a b.json",
    ]  # fmt: skip


def test_several_nodes_are_srun_and_torchrun():
    line = command_line(launch(nodes=3, max_restarts=0), Meeting(41234, "10.0.0.7"))
    assert line == [
        "srun", "--jobid", "41234", "--nodes", "3", "--ntasks", "3", "--ntasks-per-node", "1",
        "--cpus-per-task", "5", "--kill-on-bad-exit=1", "--label",
        "sh", "-c", 'BAGPIPE_AGENT=$$ exec "$0" "$@"',
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "3", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "10.0.0.7:21234", "--rdzv-id", "41234", "--nproc-per-node", "2",
        "--max-restarts", "0", "--log-dir", "/dev/null",
        "-m", "trainer.train", "--settings", "a b.json",
    ]  # fmt: skip


def test_ranks_share_the_threads_and_the_interface():
    environment = rank_environment(launch(network_interface="eth0"))
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["NCCL_SOCKET_IFNAME"] == environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert rank_environment(launch(processes=9))["OMP_NUM_THREADS"] == "1"
    assert "NCCL_SOCKET_IFNAME" not in rank_environment(launch())


def fake_slurm(folder: Path, monkeypatch, nodes: str = "n1\nn2") -> None:
    answers = {
        "squeue": 'test "$*" = "-h -j 77 -o %N" && echo "n[1-2]"',
        "scontrol": (
            f'case "$2" in hostnames) test "$3" = "n[1-2]" && printf "{nodes}\\n";;\n'
            'node) test "$4" = n1 && echo "NodeName=n1 Arch=x NodeAddr=127.0.0.1 Port=1";; esac'
        ),
    }
    for name, script in answers.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_slurm_is_asked_for_the_first_nodes_address(tmp_path, monkeypatch):
    fake_slurm(tmp_path, monkeypatch)
    meeting = find_meeting(launch(nodes=2), {"SLURM_JOB_ID": "77"})
    assert (meeting.job_id, meeting.address, meeting.port) == (77, "127.0.0.1", 20077)


def test_a_wrong_number_of_nodes_is_named(tmp_path, monkeypatch):
    fake_slurm(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"has 2 nodes \(n\[1-2\]\), run.train.nodes is 3"):
        find_meeting(launch(nodes=3), {"SLURM_JOB_ID": "77"})


def test_without_slurm_nothing_falls_back_to_one_node(tmp_path, monkeypatch):
    assert find_meeting(launch(), {}) is None
    with pytest.raises(ValueError, match=r"2 nodes need a Slurm job.*torch\.distributed\.run"):
        find_meeting(launch(nodes=2), {})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="squeue is not on PATH"):
        find_meeting(launch(nodes=2), {"SLURM_JOB_ID": "77"})


def test_a_failing_slurm_command_is_named(tmp_path, monkeypatch):
    fake_slurm(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="squeue -h -j 78 -o %N failed"):
        find_meeting(launch(nodes=2), {"SLURM_JOB_ID": "78"})
    with pytest.raises(ValueError, match="no NodeAddr"):
        node_address("NodeName=n1")


def test_a_slurm_command_that_hangs_is_one_line(tmp_path, monkeypatch):
    fake_slurm(tmp_path, monkeypatch)
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr("trainer.launch.ANSWER_SECONDS", 0.2)
    line = "squeue -h -j 77 -o %N gave no answer within 0.2 s: see whether Slurm's controller"
    with pytest.raises(ValueError, match=line):
        find_meeting(launch(nodes=2), {"SLURM_JOB_ID": "77"})


def test_dry_run_prints_the_line_and_runs_nothing(capsys):
    main(["--processes", "2", "--threads", "4", "--dry-run", "--", "-m", "x", "--flag", "a b"])
    words = shlex.split(capsys.readouterr().out)
    assert words[0] == "OMP_NUM_THREADS=2"
    assert words[-4:] == ["-m", "x", "--flag", "a b"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--processes", "0", "--", "x"], "--processes is 0"),
        (["--max-restarts", "-1", "--", "x"], "--max-restarts is -1"),
        (["--processes", "1"], "no command after --"),
    ],
)
def test_bad_arguments_are_named(arguments, line):
    with pytest.raises(ValueError, match=line):
        main(arguments)


def test_a_missing_torch_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="torchrun is missing"):
        main(["--", "-m", "x"])


FAILS_LIKE_TWO_RANKS = """
import os, sys
with open(os.environ["BAGPIPE_FAULT_FILE"], "a") as file:
    file.write("rank 1 lost the other ranks while summing\\nthe cause\\n")
sys.exit(3)
"""


def test_the_cause_is_the_last_line(caplog, monkeypatch):
    restore = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        assert start([sys.executable, "-c", FAILS_LIKE_TWO_RANKS], os.environ) == 3
        assert caplog.messages[-1] == "the cause"
        assert start([sys.executable, "-c", "raise SystemExit(2)"], os.environ) == 2
        assert caplog.messages[-1].startswith("the ranks ended with exit status 2")
    finally:
        for number, handler in restore.items():
            signal.signal(number, handler)


RANK = """
import os, signal, sys, time
def save(*_):
    open(sys.argv[1] + "/saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + "/ready", "w").write(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("status", [0, 3])
def test_a_run_leaves_nothing_in_the_temporary_folder(tmp_path, status):
    temporary, script = tmp_path / "tmp", tmp_path / "rank.py"
    temporary.mkdir()
    script.write_text(f"raise SystemExit({status})")
    ended = subprocess.run(
        [sys.executable, "-m", "trainer.launch", "--processes", "2", "--", str(script)],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert (ended.returncode != 0) == (status != 0), ended.stderr.decode()
    assert list(temporary.iterdir()) == []


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_reaches_the_ranks_which_have_time_to_save(tmp_path, number):
    (tmp_path / "rank.py").write_text(RANK)
    command = ["--", str(tmp_path / "rank.py"), str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "trainer.launch", *command], cwd=ROOT)
    try:
        wait_for(tmp_path / "ready")
        process.send_signal(number)
        assert process.wait(60) == 143
        assert (tmp_path / "saved").exists()
    finally:
        process.kill()


TWO_AGENTS = """
import sys
from trainer import distributed

def main():
    world = distributed.start("gloo", 60)
    ranks = world.gather_integers([world.rank])[:, 0].tolist()
    open(f"{sys.argv[1]}/{world.rank}", "w").write(f"{world.size} {ranks}")
    distributed.stop(world)

main()
"""


def recipe_of_the_readme(command: str | None = None) -> str:
    """The line for several machines, with two ranks on each; `command` replaces the trainer's."""
    text = (ROOT / "config/README.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```bash\n(export OMP.*?)```", text, re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    line = recipe.replace("\\\n", " ").replace("--nproc-per-node 8", "--nproc-per-node 2")
    line = line.replace("FIRST_MACHINE:29400", f"127.0.0.1:{port}").replace("eth0", "lo")
    assert line.count("--rdzv-") == 3
    return re.sub("-m trainer.train .*", command, line) if command else line


def run_agents(line: str, folders: list[Path]) -> list[tuple[int, str]]:
    """Start the line in each folder as on a machine of its own; exit status and stderr of each."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    agents = [
        subprocess.Popen(
            ["bash", "-ec", line], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True
        )
        for folder in folders
    ]
    try:
        texts = [agent.communicate(timeout=120)[1] for agent in agents]
        return [(agent.returncode, text) for agent, text in zip(agents, texts, strict=True)]
    finally:
        for agent in agents:
            agent.kill()


@pytest.mark.timeout(150)
def test_the_recipe_for_several_machines_joins_two_agents(tmp_path):
    (tmp_path / "rank.py").write_text(TWO_AGENTS)
    line = recipe_of_the_readme(f"{tmp_path}/rank.py {tmp_path}")
    assert [status for status, _ in run_agents(line, [tmp_path, tmp_path])] == [0, 0]
    said = {name: (tmp_path / name).read_text() for name in "0123"}
    assert said == dict.fromkeys("0123", "4 [0, 1, 2, 3]")


@pytest.mark.timeout(150)
def test_a_machine_without_the_shared_folder_is_named_in_one_line(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "elsewhere").mkdir()
    make_results(tmp_path / "shared/results")
    ended = run_agents(recipe_of_the_readme(), [tmp_path / "shared", tmp_path / "elsewhere"])
    assert all(status for status, _ in ended)
    errors = [line for _, text in ended for line in text.splitlines() if " ERROR " in line]
    assert len(errors) == 1
    fault = rf"opening bag files failed on rank \d on {socket.gethostname()}: results/plan holds no"
    assert re.search(fault, errors[0])
