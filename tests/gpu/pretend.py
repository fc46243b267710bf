"""A pretended GPU: CUDA's rules over the CPU's memory, so that code for a GPU runs without one.

    with pretended() as gpu:
        rows = torch.ones(3, device="cuda")
        float(rows.sum())
    assert not gpu.faults and len(gpu.waits) == 1

    python -m tests.gpu.pretend trainer.train --backend nccl ...    # a module on a pretended GPU

A `CudaTensor` says that it lies on a GPU and holds a tensor of the CPU, which computes at once. Two
modes of torch see every call: `_Calls` the functions by which a program asks for memory and copies,
`_Kernels` every operation that they come down to. `tests.gpu.clocks` keeps what would happen when.

It finds (`tests/gpu/test_pretend.py` plants one of each):
  - tensors of two devices in one operation, and numpy on the GPU's memory: CUDA's own errors;
  - memory used by a stream, or by the host, that did not wait for the one that wrote it, or written
    while another may still read it: `faults`;
  - memory given back while another stream than its own may still use it, for want of
    `record_stream`: `faults`;
  - each wait of the host with its line, also for copies that say `non_blocking` and come from
    pageable memory: `waits`;
  - random numbers of the GPU that nobody kept the state of: they have a generator of their own;
  - memory that ends: `torch.cuda.set_per_process_memory_fraction`;
  - tensors of the CPU sent over NCCL, and the GPU's over gloo (which stands in for NCCL).

It cannot show kernels, their rounding, speed or real overlap; what torch does otherwise on CUDA
(fused and `foreach` optimizers; autocast's list of operations, for which the CPU's stands in;
inference mode, which is `no_grad` here); waits and scratch memory inside an operation, but for the
waits of `_WAITING`; NCCL, synchronised batch norms, hooks that compress gradients, DDP's own order
of streams; libav's NVDEC. The C++ of torch takes these tensors for the CPU's, and DDP's buckets are
put on the GPU by hand.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # by the modes, and not first where torch is patched
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.gpu.clocks import TOTAL_BYTES, Event, Gpu, Memory, Stream

CUDA = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
_aten = torch.ops.aten
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


# --- Tensors


class CudaTensor(torch.Tensor):
    """A tensor that says it is on the GPU; `inner` holds its numbers."""

    @staticmethod
    def __new__(cls, gpu: Gpu, inner: torch.Tensor) -> CudaTensor:
        """Over the same memory as `inner`."""
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
        """An operation outside the modes, as of another thread."""
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


def pinned(gpu: Gpu, tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, whose memory counts as pinned."""
    if memory_of(tensor) is None:
        gpu.hold(tensor.untyped_storage(), on_gpu=False)
    return tensor


def memory_of(tensor: torch.Tensor) -> Memory | None:
    """Of a tensor on the GPU or in pinned memory; None: pageable."""
    inner = tensor.inner if isinstance(tensor, CudaTensor) else tensor
    return getattr(inner.untyped_storage(), "memory", None)


def is_gpu(device: object) -> bool:
    """Whether a device is a GPU."""
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


# --- Copies between host and GPU


def _copied(gpu: Gpu, own: torch.Tensor, *, non_blocking: bool) -> torch.Tensor:
    """A tensor of the CPU on the GPU, or the other way round."""
    assert not (own.requires_grad and torch.is_grad_enabled()), "a gradient does not come back"
    there = isinstance(own, CudaTensor)
    with torch._C._DisableTorchDispatch():  # the host itself touches nothing
        inner = own.inner if there else own
        found = inner.detach().clone(memory_format=torch.preserve_format)
    if not there:
        found = wrapped(gpu, found)
    elif non_blocking:  # as torch does
        found = pinned(gpu, found)
    _move(gpu, own, found, non_blocking=non_blocking)
    return found


def _move(gpu: Gpu, source: torch.Tensor, target: torch.Tensor, *, non_blocking: bool) -> None:
    """Order a copy on the current stream; whether the host waits for it."""
    _touch(gpu.stream, (source, target), {id(target)})
    on_host = target if isinstance(source, CudaTensor) else source
    if not non_blocking:
        gpu.wait(gpu.stream.clock, "copy")
    elif memory_of(on_host) is None and on_host.numel():
        gpu.wait(gpu.stream.clock, "pageable copy", told=False)


# --- Operations


def _launched(gpu: Gpu, func, args, kwargs):
    """An operation with tensors of the GPU among its arguments, or for its result."""
    tensors = _tensors((args, kwargs))
    there = [x for x in tensors if isinstance(x, CudaTensor)]
    here = [x for x in tensors if not isinstance(x, CudaTensor)]
    if func is _aten.copy_.default and here:
        _move(gpu, args[1], args[0], non_blocking=len(args) > 2 and args[2])
    else:
        _check_devices(gpu, func, args, here)
        _touch(gpu.stream, there, _written(func, args, kwargs))
    if func in _WAITING or (func in _INDEXING and _by_mask(args[1])):
        gpu.wait(gpu.stream.clock, str(func))
    if "device" in kwargs:
        kwargs = kwargs | {"device": torch.device("cpu")}
    given = tree_map(lambda x: x.inner if isinstance(x, CudaTensor) else x, (args, kwargs))
    with _random_numbers(gpu, func):
        out = _computed(func, *given)
    # An argument that is written is itself the result.
    known = {id(x.inner): x for x in there} | {id(x): x for x in here}
    return tree_map(lambda x: known.get(id(x)) if id(x) in known else _result(gpu, x, there), out)


def _written(func, args, kwargs) -> set[int]:
    """The ids of the tensors that an operation writes, by its schema."""
    if func.namespace == "c10d":
        return {id(tensor) for tensor in _tensors(args)}
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


def _check_devices(gpu: Gpu, func, args, here: list[torch.Tensor]) -> None:
    """Only numbers and indices may lie on the CPU; the indices are copied, and waited for."""
    indices = set()
    if func in _INDEXING and isinstance(args[0], CudaTensor):
        indices = {id(x) for x in args[1] if x is not None and not isinstance(x, CudaTensor)}
        if indices:
            gpu.wait(gpu.stream.clock, "index on the CPU")
    if any(x.ndim and id(x) not in indices for x in here):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices,"
            f" {CUDA} and cpu! ({func})"
        )


def _by_mask(indices) -> bool:
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


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
        self.gpu, self.of_ddp = gpu, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        if self.of_ddp and _makes_bucket(func, kwargs):
            kwargs = kwargs | {"device": CUDA}
        if func.namespace == "c10d" and not self.of_ddp:
            _check_group(args, tensors)
        if is_gpu(kwargs.get("device")) or any(isinstance(x, CudaTensor) for x in tensors):
            return _launched(self.gpu, func, args, kwargs)
        if on_host := [x for x in tensors if (memory := memory_of(x)) and not memory.on_gpu]:
            _touch(self.gpu.host, on_host, _written(func, args, kwargs))
        return func(*args, **kwargs)


# --- Ranks, over gloo


def _check_group(args, tensors: list[torch.Tensor]) -> None:
    """The first group of all ranks is NCCL's, for the GPU alone; others are gloo's."""
    (group,) = (
        dist.ProcessGroup.unbox(x)
        for x in args
        if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x._type())
    )
    kind = "cuda" if group.group_name == dist.group.WORLD.group_name else "cpu"
    for tensor in tensors:
        if tensor.device.type != kind:
            raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")


def _makes_bucket(func, kwargs) -> bool:
    return func is _aten.empty.memory_format and kwargs["dtype"].is_floating_point


def _of_ddp(kernels: _Kernels) -> dict[object, dict[str, object]]:
    """Functions in whose C++ DDP makes its buckets, which are on the GPU, and greets the others."""

    def marked(work: Callable) -> Callable:
        def run(*args, **kwargs):
            kernels.of_ddp = True
            try:
                return work(*args, **kwargs)
            finally:
                kernels.of_ddp = False

        return run

    start = dist.init_process_group
    return {
        dist: {
            "init_process_group": lambda backend, **how: start("gloo", **how),
            "_verify_params_across_processes": marked(dist._verify_params_across_processes),
        },
        dist.Reducer: {
            name: marked(getattr(dist.Reducer, name)) for name in ("__init__", "_rebuild_buckets")
        },
    }


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
        pin, device = kwargs.pop("pin_memory", False), kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and is_gpu(device):
            return _to(self.gpu, func(*args, **kwargs | {"device": "cpu"}), device)
        if is_gpu(device):
            kwargs["device"] = CUDA
        found = func(*args, **kwargs)
        return pinned(self.gpu, found) if pin else found


def _to(gpu: Gpu, own: torch.Tensor, *args, copy: bool = False, **kwargs) -> torch.Tensor:
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    device, dtype, non_blocking, form = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None and is_gpu(device) != isinstance(own, CudaTensor):
        own, copy = _copied(gpu, own, non_blocking=non_blocking), False
    dtype, form = dtype or own.dtype, form or torch.preserve_format
    if dtype == own.dtype and form is torch.preserve_format and not copy:
        return own
    return torch.Tensor.to(own, dtype=dtype, copy=copy, memory_format=form)


def _numpy(gpu: Gpu, own: torch.Tensor, *args, **kwargs):
    if isinstance(own, CudaTensor):
        raise TypeError(f"can't convert {CUDA} device type tensor to numpy")
    _touch(gpu.host, [own], set())
    return torch.Tensor.numpy(own, *args, **kwargs)


def _new_tensor(gpu: Gpu, own: torch.Tensor, data, *, dtype=None, **kwargs) -> torch.Tensor:
    if not isinstance(own, CudaTensor):
        return own.new_tensor(data, dtype=dtype, **kwargs)
    return _to(gpu, torch.tensor(data, dtype=dtype or own.dtype), CUDA)


_MOVING = {
    torch.Tensor.to: _to,
    torch.Tensor.cuda: lambda gpu, own, device=None, **how: _to(gpu, own, device or CUDA, **how),
    torch.Tensor.cpu: lambda gpu, own, **_: _to(gpu, own, "cpu"),
    torch.Tensor.numpy: _numpy,
    torch.Tensor.tolist: lambda gpu, own: _numpy(gpu, _to(gpu, own.detach(), "cpu")).tolist(),
    torch.Tensor.new_tensor: _new_tensor,
}


class _CpusAutocast(torch.autocast):
    """CUDA's casts by the CPU's list of operations, for to C++ these tensors are the CPU's."""

    def __init__(self, device_type: str, *args, **kwargs) -> None:
        super().__init__("cpu", *args, **kwargs)


_grouped = torch._C._group_tensors_by_device_and_dtype


def _grouped_by_device(tensors, with_indices: bool = False) -> dict:
    """Of optimizers and the norm's clipping: by the device that Python sees, not C++."""
    groups = _grouped(tensors, with_indices).items()
    return {(group[0][0][0].device, kind): group for (_, kind), group in groups}


def _of_torch(gpu: Gpu) -> dict[object, dict[str, object]]:
    """What else must know of the GPU."""

    def is_pinned(own: torch.Tensor, device: object = None) -> bool:
        return not own.is_cuda and memory_of(own) is not None

    def pin_memory(own: torch.Tensor, device: object = None) -> torch.Tensor:
        return own if is_pinned(own) else pinned(gpu, own.clone())

    return {
        # Not among `_MOVING`: loaders pin in a thread, which has no modes.
        torch.Tensor: {"is_pinned": is_pinned, "pin_memory": pin_memory},
        torch.accelerator: {
            "current_accelerator": lambda check_available=False: CUDA,
            "current_device_index": lambda: CUDA.index,
            "current_stream": lambda device=None: gpu.stream,
            "is_available": lambda: True,
            "set_device_index": lambda device: None,
        },
        torch._C: {
            "_InferenceMode": lambda mode: torch.no_grad() if mode else nullcontext(),
            "_group_tensors_by_device_and_dtype": _grouped_by_device,
        },
        torch: {
            "autocast": _CpusAutocast,
            # `Module.to` would put new numbers into the old parameter, which stays the CPU's.
            "_has_compatible_shallow_copy_type": lambda own, other: own.is_cuda == other.is_cuda,
        },
        torch.cuda.nccl: {"version": lambda: (2, 0, 0)},
    }


def _of_cuda(gpu: Gpu) -> dict[str, object]:
    """`torch.cuda`'s functions, as the project calls them."""

    def set_random(state: torch.Tensor, device: object = None) -> None:
        gpu.random = state.clone()

    def seed(number: int) -> None:
        gpu.random = torch.Generator().manual_seed(number).get_state()

    def set_memory(fraction: float, device: object = None) -> None:
        gpu.capacity = int(fraction * TOTAL_BYTES)

    facts = SimpleNamespace(uuid="pretended", name="Pretended GPU", total_memory=TOTAL_BYTES)
    return {
        "_lazy_init": lambda: None,
        "_sleep": gpu.sleep,
        "Event": lambda enable_timing=False: Event(gpu, enable_timing),
        "Stream": lambda device=None: Stream(gpu),
        "current_device": lambda: CUDA.index,
        "current_stream": lambda device=None: gpu.stream,
        "default_stream": lambda device=None: gpu.default,
        "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "empty_cache": lambda: None,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: facts.name,
        "get_device_properties": lambda device=None: facts,
        "get_rng_state": lambda device=None: gpu.random.clone(),
        "is_available": lambda: True,
        "manual_seed": seed,
        "manual_seed_all": seed,
        "max_memory_allocated": lambda device=None: gpu.peak,
        "mem_get_info": lambda device=None: (gpu.capacity - gpu.allocated, gpu.capacity),
        "memory_allocated": lambda device=None: gpu.allocated,
        "reset_peak_memory_stats": lambda device=None: setattr(gpu, "peak", gpu.allocated),
        "set_device": lambda device: None,
        "set_per_process_memory_fraction": set_memory,
        "set_rng_state": set_random,
        "set_sync_debug_mode": lambda mode: setattr(gpu, "sync_debug", mode),
        "stream": gpu.on_stream,
        "synchronize": lambda device=None: gpu.wait(gpu.started, "synchronize", told=False),
        "utilization": lambda device=None: 50,
    }


@contextmanager
def pretended() -> Iterator[Gpu]:
    """A GPU inside the block; torch is itself again behind it."""
    gpu = Gpu()
    kernels = _Kernels(gpu)
    changes = {torch.cuda: _of_cuda(gpu)} | _of_torch(gpu) | _of_ddp(kernels)
    with pytest.MonkeyPatch.context() as patch:
        for owner, values in changes.items():
            for name, value in values.items():
                patch.setattr(owner, name, value)
        with _Calls(gpu), kernels:
            yield gpu


def main(module: str) -> None:
    """Run a module on a pretended GPU; its end is a failure where something was found."""
    with pretended() as gpu:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    if gpu.faults:
        sys.exit("\n".join(gpu.faults))


if __name__ == "__main__":
    del sys.argv[0]
    main(sys.argv[0])
