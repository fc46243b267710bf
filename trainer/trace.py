"""A torch.profiler trace of a few steps, for chrome://tracing or perfetto."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.formats.files import whole_file

logger = logging.getLogger(__name__)


class Trace:
    """Records steps [start, start + steps) and writes `trace-rank-{rank}.json`."""

    def __init__(self, text: str, folder: Path, rank: int) -> None:
        """`text`: "START:STEPS"; no steps, no trace. Raises `ValueError`."""
        start, _, steps = text.partition(":")
        if not (start.isdecimal() and steps.isdecimal()):
            raise ValueError(f"--profile is {text!r}, expected START:STEPS, such as 10:5")
        self._start, self._stop = int(start), int(start) + int(steps)
        self._path = folder / f"trace-rank-{rank}.json"
        self._profile: profile | None = None

    def before(self, step: int) -> None:
        """Call at the start of each step."""
        if self._start <= step < self._stop and self._profile is None:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, record_shapes=True)
            self._profile.start()

    def after(self, step: int) -> None:
        """Call at the end of each step."""
        if self._profile is not None and step + 1 >= self._stop:
            self.close()

    def close(self) -> None:
        """Write what was recorded."""
        if self._profile is not None:
            self._profile.stop()
            try:
                with whole_file(self._path) as scratch:
                    self._profile.export_chrome_trace(str(scratch))
                    _check_whole(scratch)
                logger.warning("a trace of some steps is in %s", self._path)
            except OSError as error:  # no reason to end a run
                logger.warning("the trace is lost: %s", error)
            self._profile = None
            self._stop = 0


def _check_whole(path: Path) -> None:
    """Raise `OSError` where a trace does not end as JSON does: a full disk is no error to torch."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 8))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
