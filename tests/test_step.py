"""One step in all its forms: in chunks, in parts, with a memory bank, in low precision."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ranks import run_ranks
from tests.synthetic_bags import Results, results_with, train_settings
from trainer import distributed
from trainer.distributed import World
from trainer.model import TwoTowers, load_model
from trainer.monitor import read_metrics
from trainer.step import follow, largest_similarity
from trainer.towers import VideoTower
from trainer.train import main

ROOT = Path(__file__).parents[1]
BANK = {
    "bank_clips": 30, "bank_captions": 40, "bank_draw": "hardest", "bank_drawn": 20,
    "bank_warmup_steps": 1, "bank_momentum": 0.9,
}  # fmt: skip


def trained(root, flags: dict | None = None, **changes) -> tuple[dict, list[dict]]:
    """Weights and training lines of a run."""
    results = results_with(root, **changes)
    main(results.train_arguments(validate_every=0, **(flags or {})))
    return outcome(results)


def outcome(results: Results) -> tuple[dict, list[dict]]:
    state = load_model(results.root / "train/model.pt")[0].state_dict()
    return state, read_metrics(results.root / "train/metrics.jsonl")


def assert_same(found: tuple, expected: tuple, tolerance: float) -> None:
    assert np.allclose(
        [line["loss"] for line in found[1]], [line["loss"] for line in expected[1]], atol=tolerance
    )
    for name, value in expected[0].items():
        assert (found[0][name] - value).abs().max() <= tolerance, name


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16"}, {"precision": "fp16", "fp16_init_scale": 256.0}, BANK]
)
def test_chunks_change_nothing(changes, tmp_path):
    changes = changes | {"grad_clip": 0.5}
    whole = trained(tmp_path / "whole", **changes)
    chunked = trained(tmp_path / "chunked", {"chunk": 5}, **changes)
    assert_same(chunked, whole, 2e-2 if "precision" in changes else 2e-5)
    assert [line["gradient_norm"] for line in chunked[1]] == pytest.approx(
        [line["gradient_norm"] for line in whole[1]], rel=5e-2
    )


def test_plain_accumulation_gives_up_negatives_and_says_so(tmp_path, caplog):
    _, exact = trained(tmp_path / "exact")
    with caplog.at_level(logging.INFO):
        _, plain = trained(tmp_path / "plain", plain_accumulation=3)
    assert "a clip has the negatives of its own part alone, about 1/3" in caplog.text
    assert plain[0]["loss"] < exact[0]["loss"] - 0.5
    # The same clips through the same weights, whatever they are cut into.
    assert plain[0]["clip_std"] == pytest.approx(exact[0]["clip_std"], abs=1e-6)


def test_the_bank_adds_negatives_after_its_warm_up_and_is_resumed(tmp_path):
    _, without = trained(tmp_path / "without")
    changes = BANK | {"bank_warmup_steps": 2}
    expected = trained(tmp_path / "bank", **changes)
    assert [a["loss"] == b["loss"] for a, b in zip(without, expected[1], strict=True)][:3] == [
        True, True, False
    ]  # fmt: skip
    assert expected[1][2]["loss"] > without[2]["loss"]
    (folder,) = (tmp_path / "bank/train").glob("state-*")
    (folder / "step-00000008.checkpoint").unlink()
    main(Results(tmp_path / "bank").train_arguments(validate_every=0))
    assert_same(outcome(Results(tmp_path / "bank")), expected, 0)


@pytest.mark.timeout(300)
def test_two_ranks_with_bank_and_chunks_train_as_one(tmp_path):
    alone = trained(tmp_path / "alone", **BANK)
    results = results_with(tmp_path / "ranks", **BANK)
    flags = {
        "validate_every": 0, "chunk": 2, "bank_on_cpu": 1, "find_unused_parameters": 1,
        "gradient_as_bucket_view": 0, "bucket_cap_mb": 1,
    }  # fmt: skip
    argv = [
        sys.executable, "-m", "trainer.launch", "--processes", "2", "--threads", "2",
        "--", "-m", "trainer.train", *results.train_arguments(**flags),
    ]  # fmt: skip
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(outcome(results), alone, 5e-4)


def test_a_step_that_does_not_fit_says_what_to_set(tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr("trainer.step.mil_nce_loss", full)
    line = "a step of 12 clips on a rank does not fit into memory: set run.train.chunk: 3"
    with pytest.raises(OSError, match=line):
        trained(tmp_path / "whole")
    line = (
        "a step of 12 clips on a rank does not fit into memory: run.train.chunk spares the towers"
    )
    with pytest.raises(OSError, match=line):
        trained(tmp_path / "chunked", {"chunk": 3})


def test_slow_copies_take_no_more_clips_at_once_than_the_towers(tmp_path, monkeypatch):
    sizes, forward = [], TwoTowers.forward

    def limited(self, features_BTF, *rest):
        sizes.append(len(features_BTF))
        if len(features_BTF) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return forward(self, features_BTF, *rest)

    monkeypatch.setattr("trainer.run.fixed_batch", lambda *_: {})  # it is small by itself
    monkeypatch.setattr(TwoTowers, "forward", limited)
    trained(tmp_path, {"chunk": 3}, **BANK)
    assert max(sizes) == 3


def test_an_overflow_in_fp16_leaves_the_step_out_and_says_what_to_lower(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        _, lines = trained(tmp_path, precision="fp16", fp16_init_scale=2.0**60)
    text = "step 0 overflows in fp16 and is left out; the loss's factor falls to 5.76461e+17"
    assert text in caplog.text
    assert "lower train.fp16_init_scale" in caplog.text
    assert lines[0]["gradient_norm"] is None
    assert json.dumps(lines[0]["loss"]) != "null"


def test_what_no_factor_mends_ends_an_fp16_run(tmp_path, monkeypatch):
    """As on a GPU, where embeddings are not looked at before the loss."""
    monkeypatch.setattr("trainer.loss.check_finite", lambda *_: None)
    original = VideoTower.forward
    monkeypatch.setattr(VideoTower, "forward", lambda *a: original(*a) * float("nan"))
    with pytest.raises(ValueError, match=r"step 0: the loss is nan; .*--replay"):
        trained(tmp_path, precision="fp16")


def test_an_fp16_run_whose_gradients_always_overflow_ends(tmp_path, monkeypatch):
    overflow = torch.tensor(float("inf"))
    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", lambda *_: overflow)
    monkeypatch.setattr("torch.amp.GradScaler.step", lambda *_: None)
    with pytest.raises(ValueError, match=r"in fp16 though the loss's factor fell to 0\.0004"):
        trained(tmp_path, precision="fp16", fp16_init_scale=2.0**-11)


def test_unused_parameters_are_named(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        trained(tmp_path, {"find_unused_parameters": 1}, max_steps=2)
    assert caplog.text.count("parameters without a gradient: none") == 1


def test_no_steps_give_the_model_that_training_starts_from(tmp_path):
    first, _ = trained(tmp_path / "first")
    again, lines = trained(
        tmp_path / "again", max_steps=0, init_from=str(tmp_path / "first/train/model.pt")
    )
    assert lines == []
    assert all(torch.equal(value, first[name]) for name, value in again.items())


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_norms_train(norm, tmp_path):
    state, lines = trained(tmp_path, norm=norm)
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert ("text.norm.running_mean" in state) is (norm == "batch")


def compressed(world: World, _: object) -> dict:
    """The gradients of a linear layer through each hook."""
    found = {}
    for hook in ("none", "fp16_compress"):
        torch.manual_seed(0)
        model = torch.nn.Linear(40, 30)
        parallel = distributed.parallel(model, world, comm_hook=hook)
        torch.manual_seed(1 + world.rank)
        parallel(torch.randn(8, 40)).square().mean().backward()
        found[hook] = model.weight.grad.clone()
    return found


def test_compressed_gradients_are_rounded_and_equal_on_all_ranks(tmp_path):
    first, second = run_ranks(compressed, 2, None, tmp_path, seconds=180)
    for hook, error in (("none", 0.0), ("fp16_compress", 2**-9)):
        assert torch.equal(first[hook], second[hook])
        exact = first["none"]
        distance = float((first[hook] - exact).norm() / exact.norm())
        assert (distance > 0) is (error > 0)
        assert distance <= error


def test_slow_copies_follow():
    slow, own = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with torch.no_grad():
        slow.weight.fill_(1.0)
        own.weight.fill_(3.0)
    follow(slow, own, 0.75)
    assert slow.weight.tolist() == [[1.5, 1.5]]


def test_the_bound_of_cosines_is_known_from_the_settings():
    assert largest_similarity(train_settings(learn_temperature=False)) == pytest.approx(10.1)
    assert largest_similarity(train_settings(learn_temperature=True)) is None
    assert largest_similarity(train_settings(learn_temperature=False, normalize=False)) is None


@pytest.mark.filterwarnings("ignore:Error detected in BadBackward")
def test_anomaly_names_the_operation(tmp_path, monkeypatch):
    results = results_with(tmp_path, max_steps=1)

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("nan")

    forward = VideoTower.forward
    monkeypatch.setattr(VideoTower, "forward", lambda *a: Bad.apply(forward(*a)))
    try:
        with pytest.raises(ValueError, match="rank 0: step 0: Function 'BadBackward' returned nan"):
            main(results.train_arguments(anomaly=1))
    finally:
        torch.autograd.set_detect_anomaly(False)
