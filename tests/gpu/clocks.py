"""What happens before what on a pretended GPU, in vector clocks; what went wrong, and who waited.

Each stream counts its operations and knows how far it has waited for the others; the host, which
starts them all, is one more. Memory remembers who wrote it and who has read it since.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

TOTAL_BYTES = 2**33
CYCLES = 2e9
"""Of a second."""
_ROOT = Path(__file__).parents[2]
_PRETENCE = {str(_ROOT / f"tests/gpu/{name}.py") for name in ("clocks", "pretend")}


class Stream:
    """Operations in order. `clock`: how far it has waited for each stream; its own: its length."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.clock: Counter[Stream] = Counter()

    def tick(self) -> int:
        """One operation more, which the host starts, and so follows all that the host has seen."""
        self.clock |= self.gpu.host.clock
        self.clock[self] += 1
        self.gpu.started[self] = self.clock[self]
        return self.clock[self]

    def record_event(self, event: Event | None = None) -> Event:
        """As torch's."""
        event = event or Event(self.gpu)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """As torch's."""
        self.clock |= event.clock

    def wait_stream(self, other: Stream) -> None:
        """As torch's."""
        self.clock |= other.clock

    def synchronize(self) -> None:
        """As torch's."""
        self.gpu.wait(self.clock, "synchronize", told=False)

    def is_capturing(self) -> bool:
        """As torch's."""
        return False


class Event:
    """A moment of a stream."""

    def __init__(self, gpu: Gpu, enable_timing: bool = False) -> None:
        self.gpu, self.clock, self.timed, self.second = gpu, Counter(), enable_timing, math.nan

    def record(self, stream: Stream | None = None) -> None:
        """As torch's."""
        stream = stream or self.gpu.stream
        stream.tick()
        self.clock, self.second = stream.clock.copy(), self.gpu.seconds

    def synchronize(self) -> None:
        """As torch's."""
        self.gpu.wait(self.clock, "synchronize", told=False)

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds on the GPU's clock, which only `torch.cuda._sleep` moves."""
        for event in (self, later):
            if not event.timed or not event.clock <= self.gpu.host.clock:
                raise RuntimeError("both events must be timed and completed before they are read")
        return 1000 * (later.second - self.second)


@dataclass(slots=True, eq=False)
class Memory:
    """Of a storage, on the GPU or pinned: whose it is, who wrote it last, who has read it since."""

    gpu: Gpu
    owner: Stream
    num_bytes: int
    on_gpu: bool
    written: Counter = field(default_factory=Counter)
    read: Counter = field(default_factory=Counter)
    recorded: set = field(default_factory=set)
    used: Counter = field(default_factory=Counter)
    """By streams that are neither its owner nor recorded, the last time at `place`."""
    place: str = ""

    def touch(self, stream: Stream, now: int, *, writes: bool) -> None:
        """Use it on a stream; what is not ordered before that is a fault."""
        if not self.written <= stream.clock:
            self.gpu.fault("is used without waiting for the stream that writes it")
        if writes:
            if not self.read <= stream.clock:
                self.gpu.fault("is written without waiting for the stream that reads it")
            self.written, self.read = Counter({stream: now}), Counter()
        else:
            self.read[stream] = now
        if stream is not self.owner and stream not in self.recorded:
            self.used[stream], self.place = now, place()

    def record(self, stream: Stream) -> None:
        """Not to be given away before what the stream does up to then."""
        self.recorded.add(stream)
        self.used.pop(stream, None)

    def __del__(self) -> None:
        if not self.on_gpu:  # pinned memory is given away behind the copies that read it
            return
        self.gpu.allocated -= self.num_bytes
        if not self.used <= self.owner.clock | self.gpu.host.clock:
            self.gpu.fault("was given back while another stream may use it", self.place)


class Gpu:
    """The pretended GPU's state, and all that was found."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.waits: list[tuple[str, str]] = []
        """What the host waited for, and where."""
        self.started: Counter[Stream] = Counter()
        """The operations of each stream."""
        self.host = Stream(self)
        self.default = self.stream = Stream(self)
        self.seconds = 0.0
        self.random = torch.Generator().get_state()
        self.allocated, self.peak, self.capacity = 0, 0, TOTAL_BYTES
        self.sync_debug = "default"

    def fault(self, text: str, where: str = "") -> None:
        """Note what would go wrong."""
        self.faults.append(f"{where or place()}: memory {text}")

    def wait(self, clock: Counter, kind: str, *, told: bool = True) -> None:
        """The host waits until a clock's operations have ended.

        `told`: torch knows, and says so in its sync debug mode.
        """
        self.waits.append((kind, place()))
        if told and self.sync_debug == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        if told and self.sync_debug == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        self.host.clock |= clock

    def hold(self, storage: torch.UntypedStorage, *, on_gpu: bool) -> None:
        """Take account of new memory."""
        num_bytes = storage.nbytes()
        if on_gpu:
            if self.allocated + num_bytes > self.capacity:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to get {num_bytes} bytes")
            self.allocated += num_bytes
            self.peak = max(self.peak, self.allocated)
        owner = self.stream if on_gpu else self.host
        storage.memory = Memory(self, owner, num_bytes, on_gpu)

    @contextmanager
    def on_stream(self, stream: Stream | None) -> Iterator[None]:
        """As `torch.cuda.stream`."""
        before, self.stream = self.stream, stream or self.stream
        try:
            yield
        finally:
            self.stream = before

    def sleep(self, cycles: int) -> None:
        """As `torch.cuda._sleep`, without the time."""
        self.seconds += cycles / CYCLES


def place() -> str:
    """The line of the project that is running, that of a product before that of a test."""
    frame, test = sys._getframe(1), ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(str(_ROOT)) and path not in _PRETENCE:
            line = f"{path[len(str(_ROOT)) + 1 :]}:{frame.f_lineno}"
            if line.startswith(("pipeline/", "trainer/")):
                return line
            test = test or line
        frame = frame.f_back
    return test
