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
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ranks import free_port
from tests.synthetic_bags import make_results
from tests.training_runs import descendants, finish
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


def launch(nodes: int = 1, **changes) -> Launch:
    values = {
        "min_nodes": nodes, "max_nodes": nodes, "processes": 2, "threads": 5, "max_restarts": 1,
        "join_seconds": 30, "network_interface": None,
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
    line = command_line(launch(nodes=3, max_restarts=0), Meeting("10.0.0.7:21234", 41234))
    assert line == [
        "srun", "--jobid", "41234", "--nodes", "3", "--ntasks", "3", "--ntasks-per-node", "1",
        "--cpus-per-task", "5", "--kill-on-bad-exit=1", "--label",
        "sh", "-c", 'BAGPIPE_AGENT=$$ exec "$0" "$@"',
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "3", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "10.0.0.7:21234", "--rdzv-id", "41234", "--nproc-per-node", "2",
        "--max-restarts", "0", "--log-dir", "/dev/null",
        "-m", "trainer.train", "--settings", "a b.json",
    ]  # fmt: skip


def test_nodes_that_meet_without_slurm_are_torchrun_on_each():
    meeting = find_meeting(launch(nodes=3), {}, "n1:29400")
    line = command_line(launch(nodes=3), meeting)
    assert line[:12] == [
        "sh", "-c", 'BAGPIPE_AGENT=$$ exec "$0" "$@"',
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "3", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "n1:29400",
    ]  # fmt: skip
    assert "--rdzv-conf" not in line


def test_nodes_that_come_and_go_meet_on_this_one_unless_told(caplog):
    caplog.set_level("INFO")
    few = launch(min_nodes=1, max_nodes=4)
    meeting = find_meeting(few, {})
    assert f"--meet-at {meeting.endpoint}" in caplog.messages[-1]
    host, _, port = meeting.endpoint.rpartition(":")
    assert host == socket.getfqdn()
    assert 0 < int(port) < 2**16
    line = command_line(few, meeting)
    assert line[line.index("--nnodes") + 1] == "1:4"
    assert line[line.index("--rdzv-conf") + 1] == "last_call_timeout=30"


def test_a_slurm_job_keeps_its_nodes_but_several_jobs_may_meet():
    few = launch(min_nodes=1, max_nodes=4)
    with pytest.raises(ValueError, match=r"--nodes 1:4 in Slurm job 77: .*run.train.nodes: 4"):
        find_meeting(few, {"SLURM_JOB_ID": "77"})
    assert find_meeting(few, {"SLURM_JOB_ID": "77"}, "n1:29400") == Meeting("n1:29400")


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
    assert meeting == Meeting("127.0.0.1:20077", 77)


def test_a_wrong_number_of_nodes_is_named(tmp_path, monkeypatch):
    fake_slurm(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"has 2 nodes \(n\[1-2\]\), run.train.nodes is 3"):
        find_meeting(launch(nodes=3), {"SLURM_JOB_ID": "77"})


def test_without_slurm_nothing_falls_back_to_one_node(tmp_path, monkeypatch):
    assert find_meeting(launch(), {}) is None
    with pytest.raises(ValueError, match=r"2 nodes need a Slurm job.*--meet-at FIRST_NODE:29400"):
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
        (["--join-seconds", "0", "--", "x"], "--join-seconds is 0"),
        *(
            (["--nodes", nodes, "--", "x"], f"--nodes is '{nodes}', must be a number from 1 on, or")
            for nodes in ("4:1", "0:2", "x", "0", "1:", ":4", "1:2:3", "")
        ),
        (["--nodes", "1:4", "--", "x"], "--nodes 1:4 needs --max-restarts of at least 1"),
        (["--nodes", "2", "--meet-at", "n1", "--", "x"], "--meet-at is 'n1', must be HOST:PORT"),
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


@pytest.mark.timeout(150)
def test_a_node_that_waits_for_others_need_not_be_told_where(tmp_path):
    (tmp_path / "rank.py").write_text(TWO_AGENTS)
    argv = [
        sys.executable, "-m", "trainer.launch", "--nodes", "1:2", "--max-restarts", "1",
        "--join-seconds", "1", "--", str(tmp_path / "rank.py"), str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(argv, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    status, text = finish(process)
    assert status == 0, text
    assert "other machines come by the same line with --meet-at" in text
    assert (tmp_path / "0").read_text() == "1 [0]"


@pytest.mark.timeout(240)
def test_nodes_end_in_one_line_with_the_one_that_they_meet_at(tmp_path):
    """Whatever its end was; here a kill, while the others' ranks still run."""
    (tmp_path / "rank.py").write_text(RANK)
    argv = [
        sys.executable, "-m", "trainer.launch", "--nodes", "1:2", "--max-restarts", "3",
        "--meet-at", f"127.0.0.1:{free_port()}", "--join-seconds", "120", "--",
        str(tmp_path / "rank.py"), str(tmp_path),
    ]  # fmt: skip
    host = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        # Its store answers before the other may come, which else would hold it.
        wait_for_listener(int(argv[8].rpartition(":")[2]))
        guest = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        wait_for(tmp_path / "ready", 90)
        for pid in descendants(host.pid):
            os.kill(pid, signal.SIGKILL)
        status, text = finish(guest, 90)
    finally:
        host.kill()
    assert status not in (0, 143)
    assert text.splitlines()[-1].endswith("the run goes on from its newest checkpoint"), text


def wait_for_listener(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline, f"nothing listens at {port}"
        time.sleep(0.05)


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
    recipes = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    (recipe,) = (text for text in recipes if "--nodes 2 --meet-at" in text)
    line = recipe.replace("\\\n", " ").replace("--processes 8", "--processes 2")
    line = line.replace("FIRST_MACHINE:29400", f"127.0.0.1:{free_port()}").replace("eth0", "lo")
    assert line.count("127.0.0.1") == line.count("--processes 2") == line.count(" lo ") == 1
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
    fault = rf"opening bag files failed on rank \d on {socket.gethostname()}: results/plan holds no"
    for _, text in ended:
        assert re.search(f" ERROR {fault}", text.splitlines()[-1]), text
        assert len(set(re.findall(" ERROR (.*)", text))) == 1
