"""A pretended GPU: CUDA's rules over the CPU's memory, so that code for a GPU runs without one.

    with pretended() as gpu:
        rows = torch.ones(3, device="cuda")
        float(rows.sum())
    assert not gpu.faults and len(gpu.waits) == 1

A `CudaTensor` says that it lies on `cuda:0` and holds a tensor of the CPU, which computes at once.
Two modes of torch see every call: `_Calls` the functions by which a program asks for memory and
copies, `_Kernels` every operation that they come down to. What would happen *when* is kept in
vector clocks: each stream counts its operations and knows how far it has waited for the others, and
the host is one more of them.

It finds (`tests/gpu/test_pretend.py` plants one of each):
  - tensors of two devices in one operation, and numpy on the GPU's memory: CUDA's own error;
  - memory used by a stream, or by the host, that did not wait for the one that wrote it, or written
    while another may still read it: `faults`;
  - memory given back while another stream than its own may still use it, for want of
    `record_stream`: `faults`;
  - each wait of the host with its line, the copies from pageable memory that say `non_blocking`
    among them: `waits`;
  - random numbers of the GPU that nobody saved, by a generator of its own;
  - memory that ends: `torch.cuda.set_per_process_memory_fraction`.

It cannot show kernels, their rounding, speed or overlap; torch's own choice of kernels for CUDA
(fused and `foreach` optimizers, autocast's list of operations: the CPU's stands in for it); waits
and scratch memory inside an operation, but for those in `_WAITING`; NCCL, DDP's buckets on a GPU,
several GPUs; libav's NVDEC. The C++ of torch takes these tensors for the CPU's.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # by the modes, and not first where torch is patched
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda", 0)
TOTAL_BYTES = 2**33
CYCLES = 2e9
"""Of a second."""
_ROOT = Path(__file__).parents[2]
_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_INDEXING = {
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default,
    _aten._index_put_impl_.default,
}  # fmt: skip
_WAITING = {
    _aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default,
    _aten._unique2.default, _aten.equal.default, _aten.repeat_interleave.Tensor,
    _aten.bincount.default,
}  # fmt: skip
"""Operations whose result, or its size, the host must know."""


# --- What happens before what


class Stream:
    """Operations in order. `clock`: how far it has waited for each stream; its own: its length."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.device = gpu, CUDA
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
        self.gpu.await_clock(self.clock, "synchronize")

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
        self.gpu.await_clock(self.clock, "synchronize")

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


def place() -> str:
    """The line of the project that is running, that of a product before that of a test."""
    frame, test = sys._getframe(1), ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and path != Path(__file__):
            line = f"{path.relative_to(_ROOT)}:{frame.f_lineno}"
            if line.startswith(("pipeline/", "trainer/")):
                return line
            test = test or line
        frame = frame.f_back
    return test


# --- The machine


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

    def wait(self, kind: str, *, warns: bool = True) -> None:
        """Note that the host waits; `warns`: torch knows, and says so in its sync debug mode."""
        self.waits.append((kind, place()))
        if warns and self.sync_debug == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        if warns and self.sync_debug == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    def await_clock(self, clock: Counter, kind: str, *, warns: bool = False) -> None:
        """The host waits until a clock's operations have ended."""
        self.wait(kind, warns=warns)
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

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor, whose memory counts as pinned."""
        if memory_of(tensor) is None:
            self.hold(tensor.untyped_storage(), on_gpu=False)
        return tensor

    def to_gpu(self, tensor: torch.Tensor, *, non_blocking: bool) -> CudaTensor:
        """A copy of a tensor of the CPU."""
        found = wrapped(self, tensor.detach().clone(memory_format=torch.preserve_format))
        self.move(tensor, found, non_blocking=non_blocking)
        return found

    def to_cpu(self, tensor: CudaTensor, *, non_blocking: bool) -> torch.Tensor:
        """A copy on the CPU, pinned where nobody waits for it, as torch does."""
        assert not (tensor.requires_grad and torch.is_grad_enabled()), "no gradient comes back"
        found = tensor.inner.detach().clone(memory_format=torch.preserve_format)
        self.move(tensor, self.pinned(found) if non_blocking else found, non_blocking=non_blocking)
        return found

    def move(self, source: torch.Tensor, target: torch.Tensor, *, non_blocking: bool) -> None:
        """Order a copy between host and GPU on the current stream, and whether the host waits."""
        now, ends = self.stream.tick(), (source, target)
        for tensor in ends:
            if memory := memory_of(tensor):
                memory.touch(self.stream, now, writes=tensor is target)
        on_host = next(tensor for tensor in ends if not isinstance(tensor, CudaTensor))
        if not non_blocking:
            self.await_clock(self.stream.clock, "copy", warns=True)
        elif memory_of(on_host) is None and on_host.numel():
            self.await_clock(self.stream.clock, "pageable copy")

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


# --- Tensors and operations


class CudaTensor(torch.Tensor):
    """A tensor that says it is on the GPU; `inner` holds its numbers."""

    @staticmethod
    def __new__(cls, gpu: Gpu, inner: torch.Tensor) -> CudaTensor:
        """A view of `inner`."""
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device="cpu",
        )  # fmt: skip

    def __init__(self, gpu: Gpu, inner: torch.Tensor) -> None:
        self.gpu, self.inner = gpu, inner

    device = property(lambda _: CUDA)
    is_cuda = property(lambda _: True)
    is_cpu = property(lambda _: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """An operation outside the modes, as of a finalizer."""
        gpu = next(x.gpu for x in _tensors((args, kwargs)) if isinstance(x, CudaTensor))
        return _launched(gpu, func, args, kwargs or {})

    def record_stream(self, stream: Stream) -> None:
        """As torch's."""
        memory_of(self).record(stream)

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        found = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            found = torch.nn.Parameter(found, self.requires_grad)
        memo[id(self)] = found
        return found

    def __reduce_ex__(self, protocol):
        return self.detach().cpu().__reduce_ex__(protocol)

    def __repr__(self, **_) -> str:
        return f"Cuda{self.inner!r}"


def wrapped(gpu: Gpu, inner: torch.Tensor) -> CudaTensor:
    """A tensor on the GPU around one of the CPU, whose memory is new or known."""
    if memory_of(inner) is None:
        gpu.hold(inner.untyped_storage(), on_gpu=True)
    return CudaTensor(gpu, inner)


def memory_of(tensor: torch.Tensor) -> Memory | None:
    """Of a tensor on the GPU or in pinned memory; None: pageable."""
    inner = tensor.inner if isinstance(tensor, CudaTensor) else tensor
    return getattr(inner.untyped_storage(), "memory", None)


def is_gpu(device: object) -> bool:
    """Whether a device is the GPU."""
    return device is not None and torch.device(device).type == "cuda"


def _tensors(value: object) -> list[torch.Tensor]:
    """Those of an operation's arguments, in lists or not."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for part in value for tensor in _tensors(part)]


def _written(func, args, kwargs) -> set[int]:
    """The ids of the tensors that an operation writes, by its schema."""
    found: list[torch.Tensor] = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            found += _tensors(given)
    return {id(tensor) for tensor in found}


def _touch(stream: Stream, tensors: Iterable[torch.Tensor], written: set[int]) -> None:
    now = stream.tick()
    for tensor in tensors:
        if memory := memory_of(tensor):
            memory.touch(stream, now, writes=id(tensor) in written)


def _launched(gpu: Gpu, func, args, kwargs):
    """An operation with tensors of the GPU among its arguments, or for its result."""
    tensors = _tensors((args, kwargs))
    written = _written(func, args, kwargs)
    there = [x for x in tensors if isinstance(x, CudaTensor)]
    if func is _aten.copy_.default and len(there) == 1:
        gpu.move(
            args[1], args[0], non_blocking=bool(kwargs.get("non_blocking", args[2:] == (True,)))
        )
    else:
        _same_device(gpu, func, args, [x for x in tensors if not isinstance(x, CudaTensor)])
        _touch(gpu.stream, there, written)
    if func in _WAITING or (func in _INDEXING and _by_mask(args[1])):
        gpu.await_clock(gpu.stream.clock, str(func), warns=True)
    if "device" in kwargs:
        kwargs = kwargs | {"device": torch.device("cpu")}
    known = {id(x.inner): x for x in there}
    inner_args, inner_kwargs = tree_map(
        lambda x: x.inner if isinstance(x, CudaTensor) else x, (args, kwargs)
    )
    with _random_numbers(gpu, func):
        out = _computed(func, inner_args, inner_kwargs)
    if func is _aten.copy_.default and not isinstance(args[0], CudaTensor):
        return out
    return tree_map(
        lambda x: known.get(id(x), x) if id(x) in known else _result(gpu, x, there), out
    )


def _computed(func, args, kwargs):
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise torch.OutOfMemoryError("CUDA out of memory, and so is the CPU") from None


def _result(gpu: Gpu, value: object, inputs: list[CudaTensor]) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    found = wrapped(gpu, value)
    memory = memory_of(value)
    if all(memory is not memory_of(x) for x in inputs):
        memory.touch(gpu.stream, gpu.stream.clock[gpu.stream], writes=True)
    return found


def _same_device(gpu: Gpu, func, args, here: list[torch.Tensor]) -> None:
    """Only numbers, and indices, may lie on the CPU; indices are copied, and waited for."""
    indices = set()
    if func in _INDEXING and isinstance(args[0], CudaTensor):
        indices = {id(x) for x in args[1] if x is not None and not isinstance(x, CudaTensor)}
        if indices:
            gpu.await_clock(gpu.stream.clock, "index on the CPU", warns=True)
    if any(x.ndim and id(x) not in indices for x in here):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices,"
            f" cuda:0 and cpu! ({func})"
        )


def _by_mask(indices) -> bool:
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


@contextmanager
def _random_numbers(gpu: Gpu, func) -> Iterator[None]:
    """Draw from the GPU's own generator."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(gpu.random)
    try:
        yield
    finally:
        gpu.random = torch.get_rng_state()
        torch.set_rng_state(before)


class _Kernels(TorchDispatchMode):
    """Sees every operation; those of the CPU alone matter where they touch pinned memory."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        if is_gpu(kwargs.get("device")) or any(isinstance(x, CudaTensor) for x in tensors):
            return _launched(self.gpu, func, args, kwargs)
        if pinned := [x for x in tensors if (memory := memory_of(x)) and not memory.on_gpu]:
            _touch(self.gpu.host, pinned, _written(func, args, kwargs))
        return func(*args, **kwargs)


# --- Torch's functions


class _Calls(TorchFunctionMode):
    """Sees every function that a program calls; answers those that move between memories."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in _MOVING:
            return _MOVING[func](self.gpu, *args, **kwargs)
        pin = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and is_gpu(device):
            found = func(*args, **kwargs | {"device": "cpu"})
            return self.gpu.to_gpu(found, non_blocking=False)
        if is_gpu(device):
            kwargs["device"] = CUDA
        found = func(*args, **kwargs)
        return self.gpu.pinned(found) if pin else found


def _to(gpu: Gpu, own: torch.Tensor, *args, copy: bool = False, **kwargs) -> torch.Tensor:
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    device, dtype, non_blocking, form = torch._C._nn._parse_to(*args, **kwargs)
    there, dtype = isinstance(own, CudaTensor), dtype or own.dtype
    found, form = own, form or torch.preserve_format
    if device is not None and is_gpu(device) != there:
        copied = gpu.to_cpu if there else gpu.to_gpu
        found, copy = copied(own, non_blocking=non_blocking), False
    if dtype == found.dtype and form is torch.preserve_format and not copy:
        return found
    return torch.Tensor.to(found, dtype=dtype, copy=copy, memory_format=form)


def _numpy(gpu: Gpu, own: torch.Tensor, *args, **kwargs):
    if isinstance(own, CudaTensor):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    if memory := memory_of(own):
        memory.touch(gpu.host, gpu.host.tick(), writes=False)
    return torch.Tensor.numpy(own, *args, **kwargs)


def _new_tensor(gpu: Gpu, own: torch.Tensor, data, *, dtype=None, **kwargs) -> torch.Tensor:
    if not isinstance(own, CudaTensor):
        return own.new_tensor(data, dtype=dtype, **kwargs)
    return gpu.to_gpu(torch.tensor(data, dtype=dtype or own.dtype), non_blocking=False)


_MOVING = {
    torch.Tensor.to: _to,
    torch.Tensor.cuda: lambda gpu, own, device=CUDA, **how: _to(gpu, own, device or CUDA, **how),
    torch.Tensor.cpu: lambda gpu, own, **_: _to(gpu, own, "cpu"),
    torch.Tensor.numpy: _numpy,
    torch.Tensor.tolist: lambda gpu, own: _numpy(gpu, _to(gpu, own.detach(), "cpu")).tolist(),
    torch.Tensor.new_tensor: _new_tensor,
}


def _of_cuda(gpu: Gpu) -> dict[str, object]:
    """`torch.cuda`'s functions, as the project calls them."""

    def set_memory(fraction: float, device: object = None) -> None:
        gpu.capacity = int(fraction * TOTAL_BYTES)

    def set_random(state: torch.Tensor, device: object = None) -> None:
        gpu.random = state.clone()

    def seed(number: int) -> None:
        gpu.random = torch.Generator().manual_seed(number).get_state()

    facts = SimpleNamespace(uuid="pretended", name="Pretended GPU", total_memory=TOTAL_BYTES)
    return {
        "_lazy_init": lambda: None,
        "_sleep": gpu.sleep,
        "Event": lambda enable_timing=False: Event(gpu, enable_timing),
        "Stream": lambda device=None: Stream(gpu),
        "current_device": lambda: 0,
        "current_stream": lambda device=None: gpu.stream,
        "default_stream": lambda device=None: gpu.default,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: facts.name,
        "get_device_properties": lambda device=None: facts,
        "get_rng_state": lambda device=None: gpu.random.clone(),
        "is_available": lambda: True,
        "manual_seed": seed,
        "manual_seed_all": seed,
        "max_memory_allocated": lambda device=None: gpu.peak,
        "memory_allocated": lambda device=None: gpu.allocated,
        "reset_peak_memory_stats": lambda device=None: setattr(gpu, "peak", gpu.allocated),
        "set_device": lambda device: None,
        "set_per_process_memory_fraction": set_memory,
        "set_rng_state": set_random,
        "set_sync_debug_mode": lambda mode: setattr(gpu, "sync_debug", mode),
        "stream": gpu.on_stream,
        "synchronize": lambda device=None: gpu.await_clock(gpu.started, "synchronize"),
        "utilization": lambda device=None: 50,
    }


class _CpusAutocast(torch.autocast):
    """CUDA's casts by the CPU's list of operations, for to C++ these tensors are the CPU's."""

    def __init__(self, device_type: str, *args, **kwargs) -> None:
        super().__init__("cpu", *args, **kwargs)


_grouped = torch._C._group_tensors_by_device_and_dtype


def _grouped_by_device(tensors, with_indices: bool = False) -> dict:
    """Of optimizers and the norm's clipping: the device that Python sees, not C++."""
    groups = _grouped(tensors, with_indices).items()
    return {(group[0][0][0].device, kind): group for (_, kind), group in groups}


def _same_type(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.is_cuda == other.is_cuda


@contextmanager
def pretended() -> Iterator[Gpu]:
    """A GPU inside the block; torch is itself again behind it."""
    gpu = Gpu()

    def is_pinned(own, device=None):
        return not own.is_cuda and memory_of(own) is not None

    def pin(own, device=None):
        return own if is_pinned(own) else gpu.pinned(own.clone())

    changes = {
        torch.cuda: _of_cuda(gpu),
        torch.cuda.nccl: {"version": lambda: (2, 0, 0)},
        # Patched, and not among `_MOVING`: loaders pin in a thread, which has no modes.
        torch.Tensor: {"is_pinned": is_pinned, "pin_memory": pin},
        torch.accelerator: {
            "is_available": lambda: True,
            "current_accelerator": lambda check_available=False: CUDA,
            "current_device_index": lambda: 0,
            "current_stream": lambda device=None: gpu.stream,
            "set_device_index": lambda device: None,
        },
        # `Module.to` would put the new numbers into the old parameter, which stays one of the CPU.
        torch._C: {
            "_InferenceMode": lambda mode: torch.no_grad() if mode else nullcontext(),
            "_group_tensors_by_device_and_dtype": _grouped_by_device,
        },
        torch: {"autocast": _CpusAutocast, "_has_compatible_shallow_copy_type": _same_type},
    }
    with pytest.MonkeyPatch.context() as patch:
        for owner, values in changes.items():
            for name, value in values.items():
                patch.setattr(owner, name, value)
        with _Calls(gpu), _Kernels(gpu):
            yield gpu
