"""Where the time of a step goes: a timeline of named parts, read only when a line is logged.

Each moment belongs to the innermost open part, so the parts add up to the whole. On a GPU the
moments are CUDA events, which cost the step no waiting; on the CPU they are the clock's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import TypeAlias

import torch

OTHER = "other"
PARTS = (
    "data", "transfer", "video", "text", "gather", "loss", "backward", "exchange", "optimizer",
    "waiting", OTHER,
)  # fmt: skip
"""Of a step. `exchange` is the part of the gradients' exchange that no computing hides; `waiting`
is for the slowest rank before a step; `data` for the loader."""
BESIDE = ("validate", "save")
"""Between steps."""

Moment: TypeAlias = "float | torch.cuda.Event"
"""On the CPU's clock, or on a GPU's."""


class Stopwatch:
    """Seconds of each part since the last summary."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._cuda = torch.device(device).type == "cuda"
        self._open: list[str] = []
        self._moments: list[tuple[Moment, str]] = []
        self._now(OTHER)

    @contextmanager
    def part(self, name: str, *, within: tuple[str, ...] = ()) -> Iterator[None]:
        """Count the time inside as `name`'s, except inside one of the parts named in `within`.

        Nothing inside a part of `BESIDE` is a step's.
        """
        if self._open and (self._open[-1] in within or self._open[0] in BESIDE):
            yield
            return
        self._open.append(name)
        self._now(name)
        try:
            yield
        finally:
            self._open.pop()
            self._now(self._open[-1] if self._open else OTHER)

    def timed(self, name: str, work: Callable) -> Callable:
        """`work` with its time counted as `name`'s."""

        def counted(*arguments):
            with self.part(name):
                return work(*arguments)

        return counted

    def split(self, rest: str) -> None:
        """Inside a part: what follows is its own time up to the next `split`, else `rest`'s."""
        if self._moments:
            moment, name = self._moments[-1]
            if name == rest and self._open:
                self._moments[-1] = (moment, self._open[-1])
        self._now(rest)

    def summary(self) -> dict[str, float]:
        """The seconds of each part that took any; starts anew. Waits for a GPU once."""
        moments, self._moments = self._moments, []
        self._now(self._open[-1] if self._open else OTHER)
        moments.append(self._moments[0])
        if self._cuda:
            torch.cuda.synchronize()
        seconds: dict[str, float] = {}
        for (start, name), (stop, _) in pairwise(moments):
            seconds[name] = seconds.get(name, 0.0) + _between(start, stop)
        return seconds

    def _now(self, name: str) -> None:
        """From now on, time is `name`'s."""
        moment: Moment = time.perf_counter()
        if self._cuda:
            moment = torch.cuda.Event(enable_timing=True)
            moment.record()
        self._moments.append((moment, name))


def _between(start: Moment, stop: Moment) -> float:
    """Seconds from one moment to the other, both of one clock."""
    if isinstance(start, float):
        assert isinstance(stop, float)
        return stop - start
    assert not isinstance(stop, float)
    return start.elapsed_time(stop) / 1000


def watch_towers(model: torch.nn.Module, watch: Stopwatch) -> None:
    """Have the two towers' forward passes count as `video` and `text`."""
    for name in ("video", "text"):
        tower = getattr(model, name)
        opened: list[AbstractContextManager] = []

        def begin(_module, _inputs, name=name, opened=opened) -> None:
            opened.append(watch.part(name))
            opened[-1].__enter__()

        def end(_module, _inputs, _output, opened=opened) -> None:
            opened.pop().__exit__(None, None, None)

        tower.register_forward_pre_hook(begin)
        tower.register_forward_hook(end, always_call=True)


def watch_backward(model: torch.nn.Module, watch: Stopwatch) -> None:
    """Tell the backward pass from the wait for the gradients' exchange that follows it.

    Each parameter's gradient ends a stretch of computing; what comes after the last is the wait.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: watch.split("exchange"))
