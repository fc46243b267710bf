"""Training on a GPU: the copying stream, the events of the stopwatch, every precision and bank.

`python -m tests.gpu.run` runs these. Those of several ranks need as many GPUs.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import time
import warnings
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.formats.files import write_json
from tests.gpu.conftest import REAL
from tests.synthetic_bags import Results, make_results, step_data, train_settings
from trainer import train as stage
from trainer.batch import Batch, Fault
from trainer.data import load_steps
from trainer.distributed import World, parallel
from trainer.guards import Header
from trainer.loading import prefetched
from trainer.memory_bank import MemoryBank
from trainer.model import load_model
from trainer.monitor import read_metrics
from trainer.run import Run
from trainer.stopwatch import Stopwatch
from trainer.train import main
from trainer.verdict import gpu_utilization

ROOT = Path(__file__).parents[2]
SECOND = 2_000_000_000
"""Clock cycles for which a GPU is kept busy: about a second."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("exact_multiplications"),
]


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    values = [getattr(batch, field.name) for field in fields(batch)]
    return [v for v in (*values, *batch.words) if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_arrive_whole_through_the_copying_stream(tmp_path, workers):
    data, device = step_data(make_results(tmp_path)), torch.device("cuda")
    expected = [data[step] for step in range(data.schedule.num_steps)]
    loaded = load_steps(data, 0, workers=workers, timeout_seconds=60, pin=True)
    found = []
    for batch in prefetched(loaded, device, on=True):
        assert batch.features_BTF.is_cuda
        torch.cuda._sleep(SECOND // 100)
        found.append([tensor.clone() for tensor in tensors_of(batch)])
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, tensors_of(wanted), strict=True))


def test_a_fault_comes_after_the_batches_before_it(tmp_path):
    batch = step_data(make_results(tmp_path))[0]
    found = list(prefetched(iter([batch, Fault("no")]), torch.device("cuda"), on=True))
    assert [type(one) for one in found] == [Batch, Fault]


@pytest.mark.usefixtures("real_gpu")
def test_a_step_waits_for_its_own_copy_and_not_for_the_next(tmp_path, monkeypatch):
    batch, to = step_data(make_results(tmp_path))[0].pin_memory(), Batch.to

    def slowly(own: Batch, device: torch.device) -> Batch:
        if own.step == 1:
            torch.cuda._sleep(SECOND)
        return to(own, device)

    monkeypatch.setattr(Batch, "to", slowly)
    torch.cuda.synchronize()
    batches = prefetched(iter([batch, replace(batch, step=1)]), torch.device("cuda"), on=True)
    next(batches)
    began = time.perf_counter()
    torch.cuda.current_stream().synchronize()
    assert time.perf_counter() - began < 0.1
    next(batches)
    torch.cuda.current_stream().synchronize()
    assert time.perf_counter() - began > 0.2


@pytest.mark.usefixtures("real_gpu")
def test_parts_are_the_gpus_time_and_add_up():
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    watch = Stopwatch("cuda")
    watch.summary()
    began = time.perf_counter()
    for name, share in (("video", 4), ("text", 8)):
        with watch.part(name):
            torch.cuda._sleep(SECOND // share)
    asked = time.perf_counter() - began  # the CPU only asked for it
    parts, whole = watch.summary(), time.perf_counter() - began
    assert asked < 0.1
    assert parts["video"] == pytest.approx(2 * parts["text"], rel=0.1)
    assert sum(parts.values()) == pytest.approx(whole, rel=0.1)


@pytest.mark.usefixtures("real_gpu")
def test_the_gpu_says_how_busy_it_is_or_nothing():
    found = gpu_utilization(torch.device("cuda"))
    assert np.isnan(found) or 0 <= found <= 100


def losses(root: Path) -> list[float]:
    entries = read_metrics(root / "train/metrics.jsonl")
    return [entry["loss"] for entry in entries if "split" not in entry]


def trained(root: Path, flags: dict, **changes) -> Results:
    results = make_results(root)
    write_json(root / "settings/train.json", asdict(train_settings(**changes)))
    main(results.train_arguments(**flags))
    return results


BANK = {"bank_clips": 20, "bank_captions": 40, "bank_draw": "hardest", "bank_drawn": 10}


def test_a_bank_on_the_cpu_gives_its_rows_from_pinned_memory(monkeypatch):
    settings = train_settings(**BANK)
    bank = MemoryBank.of(settings, World.alone("cuda"), 3, on_cpu=True)
    bank.clips.embedding_MD.normal_()
    pinned, select = [], torch.index_select

    def watched(*arguments, out: torch.Tensor) -> torch.Tensor:
        pinned.append(out.is_pinned())
        return select(*arguments, out=out)

    monkeypatch.setattr(torch, "index_select", watched)
    found = bank._rows(bank.clips, np.array([1, 4]))
    assert pinned == [True]
    assert found.is_cuda
    assert torch.equal(found.cpu(), bank.clips.embedding_MD[[1, 4]])


@pytest.fixture
def waits_of_steps(monkeypatch) -> list[int]:
    """Gets for each step of the GPU how often torch says that the host waits in `take_step`."""
    counts, take_step = [], stage.take_step

    def watched(run: Run, batch: Batch, header: Header) -> tuple[torch.Tensor, float]:
        if run.world.device.type != "cuda":
            return take_step(run, batch, header)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            found = take_step(run, batch, header)
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchronizing" in str(one.message) for one in told))
        return found

    monkeypatch.setattr(stage, "take_step", watched)
    return counts


@pytest.mark.parametrize(
    ("flags", "changes", "tolerance", "waits"),
    [
        ({}, {}, 1e-3, 1),  # for the gradient's norm
        ({"workers": 1}, {"learn_temperature": False}, 1e-3, 1),
        ({"chunk": 5}, {}, 1e-3, 1),
        ({}, {"plain_accumulation": 2}, 1e-3, 1),
        ({"chunk": 5}, BANK | {"bank_draw": "random", "bank_momentum": 0.9}, 1e-3, 1),
        ({}, BANK, 1e-3, 2),  # and for the hardest entries
        ({"bank_on_cpu": 1}, BANK | {"bank_momentum": 0.9}, 1e-3, 4),  # and to fill two queues
        ({}, {"norm": "batch"}, 1e-3, 1),
        ({}, {"precision": "bf16"}, 0.03, 1),
        # And for the scaler, which leaves out a step that overflows.
        ({"chunk": 5}, {"precision": "fp16", "fp16_init_scale": 1024.0}, 0.03, 2),
    ],
)
def test_a_gpu_learns_what_a_cpu_does_and_waits_only_where_it_must(
    tmp_path, pretence, waits_of_steps, flags, changes, tolerance, waits
):
    changes = {"max_steps": 6} | changes
    trained(tmp_path / "cpu", flags | {"backend": "gloo"}, **(changes | {"precision": "fp32"}))
    trained(tmp_path / "gpu", flags | {"backend": "nccl"}, **changes)
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=tolerance)
    assert set(waits_of_steps[3:]) == {waits}  # the bank is small at first
    if pretence:
        assert not [where for kind, where in pretence.waits if kind == "pageable copy"]
        copies = [where for kind, where in pretence.waits if kind == "copy"]
        assert not [where for where in copies if where.startswith("trainer/alarms.py")]


def test_a_resumed_run_goes_on_on_the_gpu(tmp_path):
    flags = {"backend": "nccl", "validate_every": 4}
    trained(tmp_path / "whole", flags, **BANK)
    with pytest.raises(SystemExit):
        trained(tmp_path / "cut", flags | {"stop_at": 5}, **BANK)
    main(Results(tmp_path / "cut").train_arguments(**flags))
    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)


@pytest.fixture
def nccl_of_one(tmp_path, real_gpu):
    """A world over NCCL that one GPU can have: of a single rank that says it is one of several."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    device = torch.device("cuda", 0)
    yield World(0, 2, device, dist.new_group(None, backend="gloo"))
    dist.destroy_process_group()


def test_what_ranks_exchange_goes_over_nccl(nccl_of_one):
    """Collectives, DDP and synchronised norms on the device: the same as without them."""
    rows = torch.randn(3, 5, device="cuda")
    assert torch.equal(nccl_of_one.sum(rows), rows)
    assert torch.equal(nccl_of_one.largest(rows), rows)
    parts = [torch.empty_like(rows)]
    dist.all_gather(parts, rows, group=nccl_of_one.group_of(rows))
    assert torch.equal(parts[0], rows)
    alone = nn.Sequential(nn.Linear(5, 4), nn.SyncBatchNorm(4)).cuda()
    weights = torch.randn(4, device="cuda")
    models = {hook: copy.deepcopy(alone) for hook in ("none", "bf16_compress")}
    (alone(rows) ** 3 @ weights).sum().backward()
    for hook, tolerance in (("none", 1e-5), ("bf16_compress", 2**-7)):
        (parallel(models[hook], nccl_of_one, comm_hook=hook)(rows) ** 3 @ weights).sum().backward()
        for a, b in zip(models[hook].parameters(), alone.parameters(), strict=True):
            assert torch.allclose(a.grad, b.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(REAL and torch.cuda.device_count() < 2, reason="needs two GPUs, or none")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ({}, {}),
        ({"chunk": 2, "gradient_as_bucket_view": 0}, BANK),
        ({}, {"norm": "sync_batch"}),
        ({}, {"comm_hook": "bf16_compress"}),
    ],
)
def test_two_gpus_learn_what_one_does(tmp_path, flags, changes):
    if not REAL and ("norm" in changes or "comm_hook" in changes):
        pytest.skip("a pretended GPU cannot show it")
    changes = {"max_steps": 6} | changes
    trained(tmp_path / "one", {"backend": "nccl"}, **(changes | {"comm_hook": "none"}))
    results = make_results(tmp_path / "two")
    write_json(results.root / "settings/train.json", asdict(train_settings(**changes)))
    argv = ["-m", "trainer.launch", "--processes", "2", "--threads", "1", "--", "-m"]
    argv += [] if REAL else ["tests.gpu.pretend"]
    argv += ["trainer.train", *results.train_arguments(backend="nccl", **flags)]
    subprocess.run([sys.executable, *argv], cwd=ROOT, check=True, timeout=240)
    tolerance = 0.1 if "comm_hook" in changes else 1e-3
    assert losses(results.root) == pytest.approx(losses(tmp_path / "one"), rel=tolerance)
    weights = [load_model(tmp_path / f"{n}/train/model.pt")[0].state_dict() for n in ("one", "two")]
    for name, value in weights[0].items():
        assert torch.allclose(
            value, weights[1][name], atol=0.05 if "comm_hook" in changes else 2e-3
        )
