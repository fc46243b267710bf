"""Start a command on every rank: torchrun on this machine, or srun and torchrun on several.

Reads   nothing but the environment; on several nodes, Slurm's squeue and scontrol
Writes  nothing; the command after `--` does
By hand `python -m trainer.launch --nodes 1 --processes 2 --threads 4 -- -m trainer.train ...`

On several nodes it must run inside a Slurm job that has them: it asks squeue for the nodes, since
Snakemake's executor removes most of Slurm's variables, and lets the ranks meet at the first node's
address. Without Slurm it says what to do by hand instead of training on one node alone.

SIGTERM or SIGUSR1 to the launcher reaches the ranks, which save and end; it then exits with 143.
So it does when a single rank got the signal: all stop together, and are not started again.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.formats.command_line import CommandLine
from trainer.cli import FAULT_FILE, LOST_OTHERS, die_with_parent, run
from trainer.signals import STOP_FILE, STOPPED

SHUTDOWN_SECONDS = 120
"""How long ranks may take to save after a signal before torchrun kills them."""

ANSWER_SECONDS = 60
"""How long Slurm's commands may take to answer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is asked of the launcher."""

    nodes: int
    processes: int
    """Ranks on each node."""
    threads: int
    """Of each node, shared by its ranks."""
    max_restarts: int
    network_interface: str | None
    command: list[str]
    """What each rank runs: `-m package.module arguments` or `script.py arguments`."""

    def __post_init__(self) -> None:
        for name in ("nodes", "processes", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, must be at least 1")
        if self.max_restarts < 0:
            raise ValueError(f"--max-restarts is {self.max_restarts}, must not be negative")
        if not self.command:
            raise ValueError("there is no command after --, such as: -- -m trainer.train ...")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of several nodes meet."""

    job_id: int
    address: str
    """Of the first node."""

    @property
    def port(self) -> int:
        """Different for jobs that share a node."""
        return 20000 + self.job_id % 20000


def command_line(launch: Launch, meeting: Meeting | None) -> list[str]:
    """The argv that starts all ranks; `meeting` is None on one node."""
    if meeting is None:
        return _torchrun(launch, None)
    srun = [
        "srun", "--jobid", str(meeting.job_id), "--nodes", str(launch.nodes),
        "--ntasks", str(launch.nodes), "--ntasks-per-node", "1",
        "--cpus-per-task", str(launch.threads), "--kill-on-bad-exit=1", "--label",
    ]  # fmt: skip
    return [*srun, *_torchrun(launch, meeting)]


def _torchrun(launch: Launch, meeting: Meeting | None) -> list[str]:
    """What runs on each node."""
    rendezvous = ["--standalone"]
    if meeting is not None:
        rendezvous = [
            "--nnodes", str(launch.nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint",
            f"{meeting.address}:{meeting.port}", "--rdzv-id", str(meeting.job_id),
        ]  # fmt: skip
    return [
        sys.executable, "-m", "torch.distributed.run", *rendezvous,
        "--nproc-per-node", str(launch.processes), "--max-restarts", str(launch.max_restarts),
        # The ranks' output is ours already; torchrun would leave a folder in /tmp for every run.
        "--log-dir", os.devnull, *launch.command,
    ]  # fmt: skip


def rank_environment(launch: Launch) -> dict[str, str]:
    """The variables that all ranks get on top of the launcher's own."""
    environment = {
        "OMP_NUM_THREADS": str(max(1, launch.threads // launch.processes)),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS),
    }
    if launch.network_interface:
        environment["NCCL_SOCKET_IFNAME"] = launch.network_interface
        environment["GLOO_SOCKET_IFNAME"] = launch.network_interface
    return environment


def find_meeting(launch: Launch, environment: Mapping[str, str]) -> Meeting | None:
    """Ask Slurm for the first node of this job; None where one node is enough.

    Raises:
        ValueError: this is no Slurm job, or it has other than the wanted nodes.
    """
    if launch.nodes == 1:
        return None
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id.isdecimal():
        raise ValueError(
            f"{launch.nodes} nodes need a Slurm job, and SLURM_JOB_ID is not set: use"
            " snakemake --profile workflow/profiles/slurm, set run.train.nodes: 1, or start by hand"
            f" on every node: {shlex.join(_torchrun(launch, Meeting(0, 'FIRST_NODE')))}"
        )
    node_list = _ask(["squeue", "-h", "-j", job_id, "-o", "%N"]).strip()
    names = _ask(["scontrol", "show", "hostnames", node_list]).split()
    if len(names) != launch.nodes:
        raise ValueError(
            f"Slurm job {job_id} has {len(names)} nodes ({node_list}), run.train.nodes is"
            f" {launch.nodes}"
        )
    return Meeting(int(job_id), node_address(_ask(["scontrol", "show", "node", "-o", names[0]])))


def node_address(description: str) -> str:
    """`NodeAddr` of a node's one-line description; its name may not resolve."""
    for field in description.split():
        if field.startswith("NodeAddr="):
            return field.removeprefix("NodeAddr=")
    raise ValueError(f"scontrol names no NodeAddr: {description[:200]!r}")


def _ask(argv: list[str]) -> str:
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        raise ValueError(f"{argv[0]} is not on PATH, but several nodes need Slurm") from None
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{shlex.join(argv)} gave no answer within {ANSWER_SECONDS} s: see whether Slurm's"
            " controller runs (scontrol ping), then start again"
        ) from None
    if answer.returncode:
        raise ValueError(f"{shlex.join(argv)} failed: {answer.stderr.strip()}")
    return answer.stdout


def start(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run `argv`, passing signals on; returns its exit status.

    That is 143 after a signal, or where a signal to a rank made all of them save and stop.
    """
    process, signalled = None, False

    def pass_on(*_: object) -> None:
        nonlocal signalled
        signalled = True
        if process is not None:
            process.terminate()

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, pass_on)
    with tempfile.TemporaryDirectory(prefix="bagpipe-launch-") as folder:
        fault_file, stop_file = Path(folder) / "fault", Path(folder) / "stopped"
        # A group of its own: Ctrl-C reaches the ranks through torchrun alone, once.
        process = subprocess.Popen(
            argv,
            env={**environment, FAULT_FILE: str(fault_file), STOP_FILE: str(stop_file)},
            process_group=0,
            preexec_fn=_before_exec,  # noqa: PLW1509 - the launcher has one thread
        )
        if signalled:  # before there was anyone to tell
            process.terminate()
        status = process.wait()
        stopped = stop_file.exists()
        if stopped:
            logger.info("the ranks saved and stopped as told; a new start goes on from there")
        elif status and not signalled:
            _say_last(fault_file, status)
    return STOPPED if stopped or (signalled and status) else status


def _before_exec() -> None:
    """Torchrun goes when the launcher does, and leaves SIGUSR1, of which it would die, to ranks."""
    die_with_parent()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _say_last(fault_file: Path, status: int) -> None:
    """The first rank's reason below torchrun's long report, which would bury it."""
    reasons = [
        f"the ranks ended with exit status {status} and gave no reason: torchrun's report above"
        " names the first to end; exit code -9 is a kill from outside, often for want of memory, -6"
        " an abort, with NCCL often of ranks that waited longer than run.train.timeout_seconds"
    ]
    if fault_file.exists():
        reasons = fault_file.read_text(encoding="utf-8").splitlines()
    causes = [reason for reason in reasons if LOST_OTHERS not in reason]
    logger.error("%s", (causes or reasons)[0])


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandLine(
        prog="python -m trainer.launch",
        description="A command in, its ranks out: torchrun here, or srun and torchrun on the nodes"
        " of a Slurm job. Exit status: the ranks', or 143 after SIGTERM or SIGUSR1.",
    )
    add = parser.add_argument
    add("--nodes", type=int, default=1, help="machines")
    add("--processes", type=int, default=1, help="ranks on each machine")
    add("--threads", type=int, default=1, help="threads of each machine, shared by its ranks")
    add("--max-restarts", type=int, default=0, help="starts after a rank died")
    add("--network-interface", help="for NCCL and gloo, such as eth0")
    add("--dry-run", action="store_true", help="print the command instead of running it")
    add("command", nargs=argparse.REMAINDER, help="-- -m trainer.train ...")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Start the ranks and exit as they do."""
    arguments = _arguments(argv)
    launch = Launch(
        nodes=arguments.nodes,
        processes=arguments.processes,
        threads=arguments.threads,
        max_restarts=arguments.max_restarts,
        network_interface=arguments.network_interface,
        command=[word for i, word in enumerate(arguments.command) if i or word != "--"],
    )
    if importlib.util.find_spec("torch") is None:
        raise ValueError(f"torchrun is missing: {sys.executable} has no torch; pip install -e .")
    line = command_line(launch, find_meeting(launch, os.environ))
    environment = rank_environment(launch)
    if arguments.dry_run:
        words = [f"{name}={value}" for name, value in environment.items()]
        sys.stdout.write(shlex.join([*words, *line]) + "\n")
        return
    status = start(line, {**os.environ, **environment})
    if status:
        sys.exit(status if status > 0 else 128 - status)


if __name__ == "__main__":
    run(main)
