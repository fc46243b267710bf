"""The pretended GPU finds what it says it finds: each kind of mistake, planted.

In the small, and in the project's own code where that has a place for it.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pipeline.encoders.batches import _Feeder
from tests.gpu.clocks import Gpu, Stream
from tests.gpu.conftest import REAL
from tests.gpu.pretend import CudaTensor, pretended
from tests.synthetic_bags import make_results, step_data
from trainer import loss, loss_plan, tiles
from trainer.loading import prefetched

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REAL, reason="a real GPU pretends nothing")]


@pytest.fixture
def gpu(pretence) -> Gpu:
    """The pretended GPU; a test takes the faults that it planted out of its list."""
    return pretence


def found(gpu: Gpu) -> str:
    """The faults so far, in one text, taken out."""
    faults, gpu.faults = gpu.faults, []
    return "\n".join(faults)


def kinds(gpu: Gpu) -> list[str]:
    """What the host waited for, taken out."""
    waits, gpu.waits = gpu.waits, []
    return [kind for kind, _ in waits]


# --- Devices


def test_two_devices_in_one_operation_are_refused_but_for_numbers():
    there, here = torch.ones(2, device="cuda"), torch.ones(2)
    for work in (torch.add, torch.Tensor.add_, lambda *both: torch.stack(both)):
        for both in ((there, here), (here, there)):
            with pytest.raises(RuntimeError, match="same device"):
                work(*both)
    with pytest.raises(RuntimeError, match="same device"):
        here[torch.zeros(1, dtype=torch.int64, device="cuda")]
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert (there + torch.tensor(2.0)).tolist() == [3, 3]


def test_a_layer_there_is_like_one_of_cuda(gpu):
    rows = torch.nn.Linear(3, 2).cuda()(torch.ones(4, 3, device="cuda"))
    assert (rows.device, rows.is_cuda) == (torch.device("cuda:0"), True)
    gpu.waits.clear()
    rows.sum().backward()
    assert not gpu.waits


def test_numbers_are_drawn_by_a_generator_of_its_own():
    torch.manual_seed(1)
    here, there = torch.get_rng_state(), torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda").cpu()
    torch.set_rng_state(here)  # not enough
    assert not torch.equal(torch.rand(3, device="cuda").cpu(), first)
    torch.cuda.set_rng_state(there)
    assert torch.equal(torch.rand(3, device="cuda").cpu(), first)
    assert torch.equal(torch.get_rng_state(), here)


def test_behind_it_torch_is_itself_again():
    with pretended():
        assert torch.zeros(1, device="cuda").is_cuda
    before = torch.Tensor.pin_memory
    with pretended():
        assert torch.Tensor.pin_memory is not before
    assert torch.Tensor.pin_memory is before


# --- Order

WAYS = {
    "an event": lambda side, now: now.wait_event(side.record_event()),
    "the stream": lambda side, now: now.wait_stream(side),
    "the host": lambda side, now: side.synchronize(),
    "the device": lambda side, now: torch.cuda.synchronize(),
    "a copy to the host": lambda side, now: on(side, lambda: torch.ones(1, device="cuda").cpu()),
}


def on(stream: Stream, work):
    with torch.cuda.stream(stream):
        return work()


@pytest.mark.parametrize("way", [None, *WAYS])
def test_memory_is_used_by_a_stream_that_waited_for_its_writer(gpu, way):
    side, now = torch.cuda.Stream(), torch.cuda.current_stream()
    rows = on(side, lambda: torch.ones(2, device="cuda"))
    rows.record_stream(now)
    if way:
        WAYS[way](side, now)
    rows + 1
    assert ("used without waiting" in found(gpu)) == (way is None)


@pytest.mark.parametrize("waits", [False, True])
def test_memory_is_written_when_its_readers_have_ended(gpu, waits):
    side, rows = torch.cuda.Stream(), torch.ones(2, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    on(side, rows.exp)
    rows.record_stream(side)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    rows.zero_()
    assert ("written without waiting" in found(gpu)) == (not waits)


@pytest.mark.parametrize("way", [None, "recorded", "waited for"])
def test_memory_is_given_back_when_no_other_stream_uses_it(gpu, way):
    side, rows = torch.cuda.Stream(), torch.ones(2, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    on(side, rows[1:].exp)
    if way == "recorded":
        rows.record_stream(side)
    if way == "waited for":
        torch.cuda.current_stream().wait_stream(side)
    del rows
    assert ("given back" in found(gpu)) == (way is None)


@pytest.mark.parametrize("waits", [False, True])
def test_the_host_leaves_pinned_memory_alone_that_a_copy_reads(gpu, waits):
    rows = torch.zeros(2, pin_memory=True)
    rows.to("cuda", non_blocking=True)
    if waits:
        torch.cuda.synchronize()
    rows[0] = 1
    assert ("written without waiting" in found(gpu)) == (not waits)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("read", [lambda rows: rows.numpy(), lambda rows: rows + 1])
def test_the_host_reads_what_has_arrived(gpu, read, waits):
    rows = torch.ones(2, device="cuda").to("cpu", non_blocking=True)
    if waits:
        torch.cuda.current_stream().synchronize()
    read(rows)
    assert ("used without waiting" in found(gpu)) == (not waits)


def test_events_are_read_when_they_have_ended():
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(2_000_000)
    stop.record()
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(stop)
    stop.synchronize()
    assert start.elapsed_time(stop) == pytest.approx(1)


# --- Waits of the host


@pytest.mark.parametrize(
    "work",
    [
        lambda rows: rows.sum().item(),
        lambda rows: float(rows[0]),
        lambda rows: bool(rows[0] > 0),
        lambda rows: rows.cpu(),
        lambda rows: rows.to("cpu", torch.float64),
        lambda rows: rows.tolist(),
        lambda rows: rows.nonzero(),
        lambda rows: rows[rows > 0],
        lambda rows: rows[torch.tensor([0])],
        lambda rows: torch.tensor([1.0], device="cuda"),
        lambda rows: torch.zeros(3).to("cuda"),
        lambda rows: torch.zeros(3, pin_memory=True).to("cuda"),
        lambda rows: rows.copy_(torch.zeros(3)),
        lambda rows: torch.zeros(3).copy_(rows),
        lambda rows: rows.new_tensor([1.0]),
        lambda rows: torch.equal(rows, rows),
    ],
)  # fmt: skip
def test_a_wait_is_counted_with_its_line_and_told_by_torch_s_own_mode(gpu, work):
    rows = torch.ones(3, device="cuda")
    gpu.waits.clear()
    work(rows)
    assert gpu.waits
    assert all(where.startswith("tests/gpu/test_pretend.py:") for _, where in gpu.waits)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing"):
        work(rows)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_from_pageable_memory_waits_whatever_it_says(gpu, pinned):
    rows = torch.zeros(3, pin_memory=pinned)
    rows[1:].to("cuda", non_blocking=True)
    torch.ones(3, device="cuda").copy_(rows, non_blocking=True)
    assert kinds(gpu) == [] if pinned else ["pageable copy"] * 2


def test_computing_there_costs_no_wait(gpu):
    rows = torch.ones(3, 4, device="cuda")
    rows[1:, torch.zeros(2, dtype=torch.int64, device="cuda")] = 2
    rows.masked_fill(rows > 1, 0).softmax(dim=1).to(torch.float16).sum()
    assert not gpu.waits


# --- Memory


def test_memory_ends_and_comes_back():
    total = torch.cuda.get_device_properties(0).total_memory
    rows = torch.zeros(1000, device="cuda")
    torch.cuda.set_per_process_memory_fraction(6000 / total)
    with pytest.raises(torch.OutOfMemoryError):
        rows + 1
    view = rows[:10]
    del rows
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1000, device="cuda")
    del view
    assert torch.cuda.memory_allocated() == 0
    torch.zeros(1000, device="cuda")
    assert torch.cuda.max_memory_allocated() == 4000


# --- In the project's own code


def first_sums(folder) -> None:
    """What a step does with a batch that came through the copying stream."""
    data = step_data(make_results(folder))
    batches = prefetched(iter([data[0], data[1]]), torch.device("cuda"), on=True)
    for batch in batches:
        batch.features_BTF.float().sum()


def test_a_prefetch_that_nobody_waits_for_is_found(gpu, tmp_path, monkeypatch):
    first_sums(tmp_path)
    assert not gpu.faults
    monkeypatch.setattr(Stream, "wait_event", lambda own, event: None)
    first_sums(tmp_path / "again")
    assert "used without waiting" in found(gpu)


def test_a_prefetched_batch_that_is_not_recorded_is_found(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(CudaTensor, "record_stream", lambda own, stream: None)
    first_sums(tmp_path)
    assert "given back" in found(gpu)


def test_windows_that_the_encoder_does_not_wait_for_are_found(gpu, monkeypatch):
    feeder = _Feeder(torch.device("cuda", 0))
    feeder.moved(feeder.buffer((2, 3))).float()
    assert not gpu.faults
    monkeypatch.setattr(Stream, "wait_stream", lambda own, other: None)
    feeder.moved(feeder.buffer((2, 3))).float()
    assert "used without waiting" in found(gpu)


def test_a_window_written_into_a_buffer_on_its_way_is_found(gpu):
    feeder = _Feeder(torch.device("cuda", 0))
    buffer = feeder.buffer((2, 3))
    feeder.moved(buffer)
    buffer[0] = 1
    assert "written without waiting" in found(gpu)


def small_loss() -> None:
    clips, captions = torch.eye(3).to("cuda"), torch.eye(6, 3).to("cuda")
    loss.mil_nce_loss(
        clips.requires_grad_(), captions, torch.arange(6).view(3, 2), temperature=0.5, largest=2.1
    ).backward()


def test_an_index_left_on_the_cpu_is_found(gpu, monkeypatch):
    small_loss()
    assert kinds(gpu) == ["copy"] * 2
    for module in (tiles, loss_plan):
        monkeypatch.setattr(module, "on_device", lambda values, device: torch.as_tensor(values))
    with pytest.raises(RuntimeError, match="same device"):
        small_loss()
    assert "index on the CPU" in kinds(gpu)


def test_a_look_at_a_number_in_the_loss_is_found(gpu, monkeypatch):
    of_bags = loss._of_bags

    def looking(values_P, plan):
        float(values_P.sum())
        return of_bags(values_P, plan)

    monkeypatch.setattr(loss, "_of_bags", looking)
    small_loss()
    assert kinds(gpu) == ["copy"] * 2 + ["aten._local_scalar_dense.default"] * 2


# --- Between ranks


def test_the_gpu_s_tensors_go_over_nccl_and_the_cpu_s_over_gloo(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    gloo, there, here = dist.new_group(backend="gloo"), torch.ones(2, device="cuda"), torch.ones(2)
    try:
        dist.all_reduce(there)
        dist.all_reduce(here, group=gloo)
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(here)
        with pytest.raises(RuntimeError, match="No backend type associated with device type cuda"):
            dist.all_reduce(there, group=gloo)
    finally:
        dist.destroy_process_group()
