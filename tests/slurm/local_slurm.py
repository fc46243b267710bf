"""A private Slurm cluster on this machine: real daemons, two nodes with GPUs that are none.

Reads   Debian's packages slurm-wlm and munge, from PATH and /usr/sbin
Writes  one folder: keys, sockets, logs, spools and `jobcomp.txt`, a line for each job that ended
By hand `python -m tests.slurm.local_slurm start FOLDER`, then `eval` what it prints; `stop FOLDER`
        ends the daemons, and only those that it started

Nothing outside the folder changes, and no root, systemd, cgroups or database is needed. So memory
and CPU limits are scheduled and not enforced, and `sacct` knows nothing.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("srun", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr")
SEARCHED = os.pathsep.join(["/usr/sbin", "/sbin"])

# The partitions carry the names of workflow/profiles/slurm. Nodes claim more than the machine has,
# for the profile asks for 64 GB and nothing enforces it. Requeued jobs wait for `cred_expire`.
CONFIGURATION = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
MinJobAge=3600
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
ReturnToService=2
InactiveLimit=0
KillWait=10
GresTypes=gpu
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}"
    " RealMemory=256000 Gres=gpu:{gpus} State=UNKNOWN\n"
)
PARTITIONS = """\
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=256
PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP DefMemPerCPU=256
"""


def missing_programs() -> list[str]:
    """The daemons and clients that this machine lacks."""
    return [name for name in (*DAEMONS, *CLIENTS) if _program(name) is None]


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), SEARCHED]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSlurm:
    """A cluster in `folder`, whose path must be short: it holds a socket."""

    folder: Path
    nodes: int = 2
    cpus: int = 4
    """Of each node; may exceed what the machine has."""
    gpus: int = 2
    """Of each node; links to /dev/null, so that requests are scheduled and devices numbered."""

    def start(self) -> None:
        """Start the daemons and wait until every node is idle.

        Raises:
            ValueError: a program is missing, or a node stays down.
        """
        if missing := missing_programs():
            raise ValueError(f"{', '.join(missing)} not found: apt-get install -y slurm-wlm munge")
        self._write()
        self._start_munge()
        configuration = str(self.folder / "slurm.conf")
        _call([_program("slurmctld"), "-f", configuration])
        for name in self._names():
            _call([_program("slurmd"), "-f", configuration, "-N", name])
        idle = ["sinfo", "-h", "-N", "-p", "cpu", "-t", "idle", "-o", "%N"]
        if not _wait(lambda: len(self.ask(idle).split()) == self.nodes, seconds=60):
            logs = "\n".join(p.read_text()[-2000:] for p in sorted(self.folder.glob("log/*")))
            self.stop()
            raise ValueError(f"the nodes did not become idle:\n{logs}")

    def stop(self) -> None:
        """Cancel what runs, then end nodes, controller and munge, by their recorded ids."""
        if self._alive("slurmctld"):
            self.ask(["scancel", "--user", _user()])
            _wait(lambda: not self.ask(["squeue", "-h"]), seconds=15)
        for name in (*(f"slurmd.{name}" for name in self._names()), "slurmctld", "munged"):
            for number in (signal.SIGTERM, signal.SIGKILL):
                if pid := self._alive(name):
                    os.kill(pid, number)
                    _wait(lambda name=name: not self._alive(name), seconds=10)

    def environment(self) -> dict[str, str]:
        """The variables of a shell that talks to this cluster."""
        path = os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", ""), SEARCHED])
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def ask(self, argv: list[str]) -> str:
        """What a client such as squeue prints; nothing when it fails."""
        return subprocess.run(
            argv,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout.strip()

    def ended_jobs(self) -> list[dict[str, str]]:
        """What Slurm recorded of each job that ended, oldest first."""
        record = self.folder / "jobcomp.txt"
        lines = record.read_text().splitlines() if record.exists() else []
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]

    def _names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def _write(self) -> None:
        # munged refuses a socket under a folder that others may write to.
        for name in ("", "run", "log", "state", "bin", "dev", "etc"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            (self.folder / name).chmod(0o755)
        ports = _free_ports(self.nodes + 1)
        facts = {"host": socket.gethostname().split(".")[0], "cpus": self.cpus, "gpus": self.gpus}
        lines = [
            NODE.format(name=name, port=port, **facts)
            for name, port in zip(self._names(), ports[1:], strict=True)
        ]
        head = CONFIGURATION.format(folder=self.folder, user=_user(), ports=ports, **facts)
        (self.folder / "slurm.conf").write_text(head + "".join(lines) + PARTITIONS)
        for name in self._names():
            (self.folder / "spool" / name).mkdir(parents=True, exist_ok=True)
        self._write_gpus()
        self._write_clients()

    def _write_gpus(self) -> None:
        for number in range(self.gpus):
            link = self.folder / f"dev/gpu{number}"
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        devices = f"{self.folder}/dev/gpu[0-{self.gpus - 1}]"
        text = f"AutoDetect=off\nName=gpu Flags=nvidia_gpu_env File={devices}\n"
        (self.folder / "gres.conf").write_text(text)

    def _write_clients(self) -> None:
        """Clients that know the cluster: Snakemake's job step removes SLURM_CONF in jobs."""
        for name in CLIENTS:
            script = self.folder / "bin" / name
            line = f"SLURM_CONF={shlex.quote(str(self.folder / 'slurm.conf'))}"
            program = shlex.quote(str(_program(name)))
            script.write_text(f'#!/bin/sh\n{line}\nexport SLURM_CONF\nexec {program} "$@"\n')
            script.chmod(0o755)

    def _start_munge(self) -> None:
        key = self.folder / "etc/munge.key"
        key.unlink(missing_ok=True)
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        run = self.folder / "run"
        # --force: the folder may lie in /tmp, which everyone may write to.
        _call([
            _program("munged"), "--force", "--key-file", str(key),
            "--socket", str(run / "munge.sock"), "--pid-file", str(run / "munged.pid"),
            "--log-file", str(self.folder / "log/munged.log"),
            "--seed-file", str(self.folder / "etc/munge.seed"), "--num-threads", "2",
        ])  # fmt: skip

    def _alive(self, name: str) -> int:
        """The process id of a daemon, or 0; an ended one may still wait for its parent."""
        try:
            pid = int((self.folder / f"run/{name}.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return 0
        return pid if name.split(".")[0].encode() in words else 0


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _call(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ValueError(f"{shlex.join(argv)} failed: {done.stderr.strip()}")


def _wait(done: Callable[[], object], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.2)
    return False


def main(argv: list[str] | None = None) -> None:
    """Start or stop a cluster by hand."""
    parser = argparse.ArgumentParser(
        description="A folder in; a running cluster and the exports of a shell that uses it out."
    )
    parser.add_argument("command", choices=("start", "stop"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args(argv)
    cluster = LocalSlurm(folder=arguments.folder.resolve())
    if arguments.command == "stop":
        cluster.stop()
        return
    cluster.start()
    for name, value in cluster.environment().items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


if __name__ == "__main__":
    main()
