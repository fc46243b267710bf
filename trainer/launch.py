"""Start a command on every rank: torchrun on this machine, or srun and torchrun on several.

Reads   nothing but the environment; on several nodes of a Slurm job, its squeue and scontrol
Writes  nothing; the command after `--` does
By hand `python -m trainer.launch --nodes 1 --processes 2 --threads 4 -- -m trainer.train ...`

One launcher serves all nodes of a Slurm job: it asks squeue for them, since Snakemake's executor
removes most of Slurm's variables, and lets the ranks meet at the first node's address. Without
Slurm each node has a launcher, and `--meet-at` names the place. Nothing falls back to one node.

SIGTERM or SIGUSR1 to the launcher reaches the ranks, which save and end; it then exits with 143.
So it does when a single rank got the signal: all stop together, and are not started again.

With `--nodes MIN:MAX` nodes come and go. Torchrun starts the ranks of all nodes anew when one comes
or leaves, and they go on from the checkpoint that they saved at the step they agreed on, or, where
a node died, from the newest. The signal then takes only its own node away. A node that leaves uses
up one of `--max-restarts` on every other, one that comes at most one. All nodes end with the one
that they meet at, which holds torchrun's store.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.formats.command_line import CommandLine
from trainer.cli import AGENT, FAULT_FILE, LOST_OTHERS, die_with_parent, run
from trainer.signals import STOP_FILE, STOPPED

SHUTDOWN_SECONDS = 120
"""How long ranks may take to save after a signal before torchrun kills them."""

_AS_AGENT = ["sh", "-c", f'{AGENT}=$$ exec "$0" "$@"']
"""Tells torchrun's ranks its process id: one that it started and then died under would else take
whoever adopted it for its parent."""

ANSWER_SECONDS = 60
"""How long Slurm's commands may take to answer."""

STORE_LOST = (
    "; if the machine where the nodes meet has ended, start all again: the run goes on from its"
    " newest checkpoint"
)
"""For nodes that may come and go, and could not start again."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is asked of the launcher."""

    min_nodes: int
    max_nodes: int
    processes: int
    """Ranks on each node."""
    threads: int
    """Of each node, shared by its ranks."""
    max_restarts: int
    join_seconds: int
    """How long nodes that are enough wait for more before a start."""
    network_interface: str | None
    command: list[str]
    """What each rank runs: `-m package.module arguments` or `script.py arguments`."""

    def __post_init__(self) -> None:
        for name in ("processes", "threads", "join_seconds"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {value}, must be at least 1")
        if self.max_restarts < 0:
            raise ValueError(f"--max-restarts is {self.max_restarts}, must not be negative")
        if self.elastic and not self.max_restarts:
            raise ValueError(
                f"--nodes {self.nodes} needs --max-restarts of at least 1: each node that leaves"
                " uses up one on every other"
            )
        if not self.command:
            raise ValueError("there is no command after --, such as: -- -m trainer.train ...")

    @property
    def elastic(self) -> bool:
        """Whether nodes may come and go."""
        return self.min_nodes < self.max_nodes

    @property
    def nodes(self) -> str:
        """As torchrun and people write it."""
        return f"{self.min_nodes}:{self.max_nodes}" if self.elastic else str(self.max_nodes)


def node_range(text: str) -> tuple[int, int]:
    """The fewest and the most nodes of `4` or `1:4`; raises `ValueError`."""
    low, colon, high = text.partition(":")
    try:
        fewest, most = int(low), int(high if colon else low)
    except ValueError:
        fewest = most = 0
    if not 1 <= fewest <= most:
        raise ValueError(f"--nodes is {text!r}, must be a number from 1 on, or MIN:MAX as in 1:4")
    return fewest, most


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of several nodes meet."""

    endpoint: str
    """HOST:PORT on the first node, whose torchrun listens there."""
    job_id: int | None = None
    """The Slurm job that starts torchrun on all nodes; without, each node's launcher does."""


def command_line(launch: Launch, meeting: Meeting | None) -> list[str]:
    """The argv that starts all ranks; `meeting` is None on one node."""
    torchrun = [*_AS_AGENT, *_torchrun(launch, meeting)]
    if meeting is None or meeting.job_id is None:
        return torchrun
    srun = [
        "srun", "--jobid", str(meeting.job_id), "--nodes", launch.nodes,
        "--ntasks", launch.nodes, "--ntasks-per-node", "1",
        "--cpus-per-task", str(launch.threads), "--kill-on-bad-exit=1", "--label",
    ]  # fmt: skip
    return [*srun, *torchrun]


def _torchrun(launch: Launch, meeting: Meeting | None) -> list[str]:
    """What runs on each node."""
    rendezvous = ["--standalone"]
    if meeting is not None:
        rendezvous = [
            "--nnodes", launch.nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint",
            meeting.endpoint, "--rdzv-id", str(meeting.job_id or "bagpipe"),
        ]  # fmt: skip
    if launch.elastic:
        rendezvous += ["--rdzv-conf", f"last_call_timeout={launch.join_seconds}"]
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
    if launch.elastic:
        # Torchrun's shared store knows of no later change: a node that comes would wait there for
        # an address that only the first start writes.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if launch.network_interface:
        environment["NCCL_SOCKET_IFNAME"] = launch.network_interface
        environment["GLOO_SOCKET_IFNAME"] = launch.network_interface
    return environment


def find_meeting(
    launch: Launch, environment: Mapping[str, str], meet_at: str | None = None
) -> Meeting | None:
    """Where the nodes meet: as told, on this one, or the first of this Slurm job; None: no need.

    Raises:
        ValueError: several nodes and neither told nor a Slurm job, or one of other nodes.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if meet_at:
        host, _, digits = meet_at.rpartition(":")
        if not (host and digits.isdecimal()):
            raise ValueError(f"--meet-at is {meet_at!r}, must be HOST:PORT as in node1:29400")
        return Meeting(meet_at)
    if launch.max_nodes == 1:
        return None
    if launch.elastic and job_id:
        raise ValueError(
            f"--nodes {launch.nodes} in Slurm job {job_id}: the nodes of a job are fixed; set"
            f" run.train.nodes: {launch.max_nodes} and let a new start go on, or start jobs of one"
            " node each by hand, all with the same --meet-at"
        )
    if launch.elastic:
        return _meet_here()
    if not job_id.isdecimal():
        raise ValueError(
            f"{launch.nodes} nodes need a Slurm job, and SLURM_JOB_ID is not set: use"
            " snakemake --profile workflow/profiles/slurm, set run.train.nodes: 1, or start the"
            " same line by hand on every node, with --meet-at FIRST_NODE:29400"
        )
    node_list = _ask(["squeue", "-h", "-j", job_id, "-o", "%N"]).strip()
    names = _ask(["scontrol", "show", "hostnames", node_list]).split()
    if len(names) != launch.max_nodes:
        raise ValueError(
            f"Slurm job {job_id} has {len(names)} nodes ({node_list}), run.train.nodes is"
            f" {launch.nodes}"
        )
    address = node_address(_ask(["scontrol", "show", "node", "-o", names[0]]))
    port = 20000 + int(job_id) % 20000  # another for jobs that share a node
    return Meeting(f"{address}:{port}", int(job_id))


def _meet_here() -> Meeting:
    """A free port of this machine, said so that others can come."""
    with socket.create_server(("", 0)) as server:
        meeting = Meeting(f"{socket.getfqdn()}:{server.getsockname()[1]}")
    logger.info(
        "other machines come by the same line with --meet-at %s after trainer.launch",
        meeting.endpoint,
    )
    return meeting


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


def start(argv: list[str], environment: Mapping[str, str], *, elastic: bool = False) -> int:
    """Run `argv`, passing signals on; returns its exit status.

    That is 143 after a signal, or where a signal to a rank made all of them save and stop. Where
    nodes come and go (`elastic`), ranks that stop say so to torchrun, which starts them again.
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
        files = {FAULT_FILE: str(fault_file)} | ({} if elastic else {STOP_FILE: str(stop_file)})
        # A group of its own: Ctrl-C reaches the ranks through torchrun alone, once.
        process = subprocess.Popen(
            argv,
            env={**environment, **files},
            process_group=0,
            preexec_fn=partial(_before_exec, os.getpid()),  # noqa: PLW1509 - the launcher has one thread
        )
        if signalled:  # before there was anyone to tell
            process.terminate()
        status = process.wait()
        stopped = stop_file.exists()
        if stopped:
            logger.info("the ranks saved and stopped as told; a new start goes on from there")
        elif elastic and signalled:
            logger.info("this node has left; the others go on, unless they met here")
        elif status and not signalled:
            _say_last(fault_file, status, STORE_LOST if elastic else "")
    return STOPPED if stopped or (signalled and status) else status


def _before_exec(launcher: int) -> None:
    """Torchrun goes when the launcher does, and leaves SIGUSR1, of which it would die, to ranks."""
    die_with_parent(launcher)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _say_last(fault_file: Path, status: int, hint: str) -> None:
    """The first rank's reason below torchrun's long report, which would bury it."""
    reasons = fault_file.read_text(encoding="utf-8").splitlines() if fault_file.exists() else []
    causes = [reason for reason in reasons if LOST_OTHERS not in reason]
    if causes:
        logger.error("%s", causes[0])
        return
    unknown = (
        f"the ranks ended with exit status {status} and gave no reason: torchrun's report above"
        " names the first to end; exit code -9 is a kill from outside, often for want of memory, -6"
        " an abort, with NCCL often of ranks that waited longer than run.train.timeout_seconds, -7"
        " (SIGBUS) a mapped file that became shorter under it: a bag file (results/bags) or"
        " embeddings written over in place, by cp or rsync --inplace, instead of renamed over"
    )
    logger.error("%s%s", (reasons or [unknown])[0], hint)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandLine(
        prog="python -m trainer.launch",
        description="A command in, its ranks out: torchrun here, or srun and torchrun on the nodes"
        " of a Slurm job. Exit status: the ranks', or 143 after SIGTERM or SIGUSR1.",
    )
    add = parser.add_argument
    add("--nodes", default="1", help="machines, or MIN:MAX that may come and go")
    add("--meet-at", metavar="HOST:PORT", help="of the first machine, without Slurm")
    add("--processes", type=int, default=1, help="ranks on each machine")
    add("--threads", type=int, default=1, help="threads of each machine, shared by its ranks")
    add("--max-restarts", type=int, default=0, help="starts after a rank died")
    add("--join-seconds", type=int, default=30, help="how long MIN machines wait for more")
    add("--network-interface", help="for NCCL and gloo, such as eth0")
    add("--dry-run", action="store_true", help="print the command instead of running it")
    add("command", nargs=argparse.REMAINDER, help="-- -m trainer.train ...")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Start the ranks and exit as they do."""
    arguments = _arguments(argv)
    min_nodes, max_nodes = node_range(arguments.nodes)
    launch = Launch(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        processes=arguments.processes,
        threads=arguments.threads,
        max_restarts=arguments.max_restarts,
        join_seconds=arguments.join_seconds,
        network_interface=arguments.network_interface,
        command=[word for i, word in enumerate(arguments.command) if i or word != "--"],
    )
    if importlib.util.find_spec("torch") is None:
        raise ValueError(f"torchrun is missing: {sys.executable} has no torch; pip install -e .")
    line = command_line(launch, find_meeting(launch, os.environ, arguments.meet_at))
    environment = rank_environment(launch)
    if arguments.dry_run:
        words = [f"{name}={value}" for name, value in environment.items()]
        sys.stdout.write(shlex.join([*words, *line]) + "\n")
        return
    status = start(line, {**os.environ, **environment}, elastic=launch.elastic)
    if status:
        sys.exit(status if status > 0 else 128 - status)


if __name__ == "__main__":
    run(main)
