"""How every command of the trainer starts and fails: log lines on stderr, errors in one line."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
FINAL = ".final"
"""Suffix of the fault file's twin, which says that another start would end alike."""
LOST_OTHERS = "lost the other ranks"
"""Words of a fault that follows from another rank's."""
AGENT = "BAGPIPE_AGENT"
"""Environment variable: the process id of the torchrun that the launcher started."""
FAULT_FILE = "BAGPIPE_FAULT_FILE"
"""Environment variable: a file to which a rank also writes why it failed, for the launcher to say
last, below what torchrun prints."""


def run(main: Callable[[], None]) -> None:
    """Run a command's `main`; an error that people can mend ends in one line and exit status 1.

    A broken promise of our own code still shows its traceback.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    status = status_of(main)
    # What a cycle, or the frames of an exit from deep within, still hold of a process group would
    # go at exit, when its threads may abort the rank: `terminate called`.
    gc.collect()
    if status:
        sys.exit(status)


def status_of(main: Callable[[], None]) -> str | int | None:
    """Run `main`; what `sys.exit` is to be given for how it ended."""
    try:
        main()
    except (ValueError, OSError) as error:
        line = " ".join(str(error).split())
        logging.getLogger(__name__).error("%s", line)
        tell_launcher(line)
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code
    return None


def speak_as(rank: int) -> None:
    """From now on, log lines of ranks above 0 carry the rank and tell of trouble only."""
    if rank:
        logging.getLogger().setLevel(logging.WARNING)
        for handler in logging.getLogger().handlers:
            handler.setFormatter(
                logging.Formatter(f"%(asctime)s %(levelname)s rank {rank}: %(message)s", "%H:%M:%S")
            )


def die_with_parent(parent: int) -> None:
    """Have Linux send this process SIGTERM when its parent dies, however it dies.

    A launcher that was killed must not leave ranks behind that go on writing checkpoints. Linux
    tells of deaths from now on alone, so `parent`, its process id, is one that was known before.

    Raises:
        ProcessLookupError: the parent is dead already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise ProcessLookupError(
            f"process {parent}, which started this one, is gone: a rank does not go on alone"
        )


def forbid_restarts() -> None:
    """Have ranks that torchrun starts again in place end at once: the fault is in the run."""
    if path := os.environ.get(FAULT_FILE):
        with suppress(OSError):
            Path(path + FINAL).touch()


def end_if_restarted_in_vain() -> None:
    """End this rank where one of the start before told that another start would end alike."""
    path = os.environ.get(FAULT_FILE)
    if (
        path
        and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        and os.path.exists(path + FINAL)
    ):
        sys.exit(1)


def tell_launcher(line: str) -> None:
    """Have the launcher say this line last, where there is one."""
    if path := os.environ.get(FAULT_FILE):
        # On another node than the launcher's there is no such folder.
        with suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
