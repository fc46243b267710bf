"""Exchanges between ranks, agreed failures, and the choice of backend and device."""

from __future__ import annotations

import socket
import sys

import pytest
import torch

from tests.ranks import run_ranks
from trainer.batch import Batch, Fault
from trainer.distributed import World, choose_device, start
from trainer.guards import check_same_setup, check_same_weights, exchange_headers

HOST = socket.gethostname()


def batch_of(step: int, id_hash: int = 5, clips: int = 2) -> Batch:
    empty = torch.zeros(0, dtype=torch.int64)
    return Batch(
        step=step, id_hash=id_hash, clip_ids_B=torch.zeros(clips), caption_ids_N=empty,
        features_BTF=empty, mask_BT=empty, words=None, bag_idx_BA=torch.tensor([[0, -1], [-1, -1]]),
        clip_keys_B3=empty, caption_keys_N4=empty,
    )  # fmt: skip


def outcome(work) -> str:
    """What became of a call: its result, its error's text, or its exit status."""
    try:
        return repr(work())
    except ValueError as error:
        return f"ValueError: {error}"
    except SystemExit as end:
        return f"exit {end.code}"


def exchanges(world: World, _) -> dict:
    """Every exchange once; runs on each rank."""
    rank = world.rank

    def fail_on(ranks, text="broken"):
        def work():
            if rank in ranks:
                raise ValueError(text)
            return "fine"

        return outcome(lambda: world.agree(work, doing="testing"))

    def header(batch, stop=False):
        def work():
            found = exchange_headers(world, 7, batch, stop=stop)
            return found.counts_W3.tolist(), found.stop, found.clips

        return outcome(work)

    rows = torch.full((rank, 2), float(rank), dtype=torch.float64)
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, 1.0 if rank != 1 else 2.0)
    torch.nn.init.zeros_(model.bias)
    return {
        "rows": world.gather_rows(rows, list(range(world.size))),
        "transposed": world.gather_rows(torch.arange(6.0).reshape(2, 3).T, [3] * world.size),
        "wrong count": outcome(lambda: world.gather_rows(rows, [9] * world.size)),
        "integers": world.gather_integers([rank, -rank]).tolist(),
        "texts": world.gather_texts("ü" * rank),
        "sum": world.sum(torch.tensor([rank, 1.0])),
        "bytes": world.broadcast_bytes(b"abc" if world.first else None),
        "nothing": world.broadcast_bytes(b"" if world.first else None),
        "agree": fail_on([]),
        "agree, one fails": fail_on([1]),
        "agree, all fail": fail_on(range(9)),
        "header": header(batch_of(7)),
        "header, stop": header(batch_of(7), stop=rank == 1),
        "header, fault": header(Fault("no file") if rank == 1 else batch_of(7)),
        "header, step": header(batch_of(7 + (rank == 1))),
        "header, videos": header(batch_of(7, id_hash=5 + (rank == 2))),
        "setup": outcome(lambda: check_same_setup(world, {"lr": 1}, 4)),
        "setup, odd": outcome(lambda: check_same_setup(world, {"lr": rank == 2}, 4)),
        "weights, odd": outcome(lambda: check_same_weights(world, model)),
    }


def test_exchanges_between_three_ranks(tmp_path):
    found = run_ranks(exchanges, 3, None, tmp_path)
    for rank, result in enumerate(found):
        first = rank == 0
        assert result["rows"].tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        assert result["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]] * 3
        assert f"rank {rank} announced 9 rows" in result["wrong count"]
        assert result["integers"] == [[0, 0], [1, -1], [2, -2]]
        assert result["texts"] == ["", "ü", "üü"]
        assert result["sum"].tolist() == [3.0, 3.0]
        assert (result["bytes"], result["nothing"]) == (b"abc", b"")
        assert result["agree"] == "'fine'"
        told = {
            "agree, one fails": f"testing failed on rank 1 on {HOST}: broken",
            "agree, all fail": "broken",
            "header, step": "rank 1 is at step 8 while others are at step 7: ranks are out of step",
            "header, videos": "rank 2 is at other videos of step 7 while others are at step 7:"
            " ranks are out of step",
            "setup, odd": f"rank 2 on {HOST} has other settings or bag files than rank 0:"
            " every node must see the same shared folder",
            "weights, odd": f"rank 1 on {HOST} has other weights than rank 0",
        }
        for name, line in told.items():
            assert result[name] == (f"ValueError: {line}" if first else "exit 1"), name
        assert result["header"] == "([[2, 0, 1], [2, 0, 1], [2, 0, 1]], False, 6)"
        assert result["header, stop"] == "([[2, 0, 1], [2, 0, 1], [2, 0, 1]], True, 6)"
        assert result["header, fault"] == ("ValueError: no file" if rank == 1 else "exit 1")
        assert result["setup"] == "None"


def test_one_process_exchanges_with_itself():
    world = World.alone()
    rows = torch.ones(3, 2, requires_grad=True)
    assert torch.equal(world.gather_rows(rows, [3]), rows)
    assert not world.gather_rows(rows, [3]).requires_grad
    assert world.gather_texts("ü") == ["ü"]
    assert world.broadcast_bytes(b"x") == b"x"
    assert world.agree(lambda: 3, doing="testing") == 3
    with pytest.raises(ValueError, match="broken"):
        world.agree(lambda: (_ for _ in ()).throw(ValueError("broken")), doing="testing")


@pytest.mark.parametrize(
    ("backend", "local_size", "gpus", "expected"),
    [
        ("auto", 2, 0, ("gloo", "cpu")),
        ("auto", 1, 4, ("nccl", "cuda:1")),
        ("auto", 2, 2, ("nccl", "cuda:1")),
        ("gloo", 2, 8, ("gloo", "cpu")),
        ("nccl", 2, 8, ("nccl", "cuda:1")),
    ],
)
def test_backend_and_device(backend, local_size, gpus, expected):
    found, device = choose_device(backend, 1, local_size, gpus)
    assert (found, str(device)) == expected


def test_wrong_backends_are_named():
    with pytest.raises(ValueError, match=r"nccl needs a GPU for each rank: 2 ranks .* 1 GPUs"):
        choose_device("nccl", 1, 2, 1)
    with pytest.raises(ValueError, match=r"8 ranks .* and 7 GPUs .*: set run\.train\.proc"):
        choose_device("auto", 0, 8, 7)
    with pytest.raises(ValueError, match="backend is 'mpi', allowed"):
        choose_device("mpi", 0, 1, 1)


def test_ranks_that_do_not_come_are_one_clear_line(monkeypatch):
    from tests.ranks import free_port

    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConnectionError, match="rank 1 of 2 could not join the others within 1 s"):
        start("gloo", timeout_seconds=1)


def test_importing_starts_nothing():
    assert not torch.distributed.is_initialized()
    assert "trainer.distributed" in sys.modules
