"""Alarms, stall dumps, replay of a step that was not finite, start records and their comparison."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from pipeline.formats.files import read_json, write_json
from tests.synthetic_bags import Results, make_results, train_settings
from tests.test_data import step_data
from trainer.alarms import Alarms, spread
from trainer.checkpoint import fingerprint
from trainer.distributed import World
from trainer.fixed_batch import fixed_batch
from trainer.model import build_model
from trainer.record import compare_machines, describe_machine
from trainer.replay import replay
from trainer.tools import compare
from trainer.train import main

ROOT = Path(__file__).parents[1]


def run_folder(results: Results) -> Path:
    return next((results.root / "train").glob("state-*"))


def settings(results: Results, **changes) -> None:
    write_json(results.root / "settings/train.json", asdict(train_settings(**changes)))


def alarms(chance: float = 5.0, **changes) -> Alarms:
    return Alarms(train_settings(warmup_samples=0, **changes), chance, speaks=True)


def test_a_large_gradient_norm_is_told_once_until_it_is_over(caplog):
    watched = alarms()
    with caplog.at_level(logging.WARNING):
        for norms in ((3.0, 25.0), (30.0,), (1.0,), (21.0,)):
            for norm in norms:
                watched.step(norm)
            rang = watched.line({"step": 1, "loss": 1.0})
            assert rang == (["norm"] if max(norms) > 20 else [])
    assert caplog.text.count("the gradient norm reached") == 2
    assert "reached 25, above 20" in caplog.text


def test_collapse_and_a_loss_at_chance_are_told_after_a_while():
    line = {"loss": 4.95, "clip_std": 0.01, "caption_std": 0.9}
    assert alarms().line(line | {"step": 200}) == []
    assert alarms().line(line | {"step": 201}) == ["chance", "clip_std"]
    assert alarms().line(line | {"step": 201, "loss": 4.0, "clip_std": 0.5}) == []
    assert alarms(bank_clips=8).line(line | {"step": 201, "clip_std": 1.0}) == []


def test_spread_is_one_for_scattered_and_zero_for_equal_embeddings():
    torch.manual_seed(0)
    scattered, equal = torch.randn(4000, 16), torch.ones(7, 16)
    found = spread(World.alone(), scattered, equal)
    assert found["clip_std"] == pytest.approx(1, abs=0.01)
    assert found["caption_std"] == pytest.approx(0, abs=1e-6)
    assert spread(World.alone(), scattered[:0], equal)["clip_std"] == 1.0


@pytest.mark.timeout(60)
def test_a_stall_dumps_the_stacks_of_all_threads():
    code = (
        "import threading, time, logging; logging.basicConfig()\n"
        "from trainer.watchdog import Watchdog\n"
        "def waits_for_nothing(): time.sleep(9)\n"
        "threading.Thread(target=waits_for_nothing, daemon=True).start()\n"
        "with Watchdog(3, 1.5) as dog:\n"
        "    dog.beat(); time.sleep(0.01); dog.beat(); time.sleep(3); dog.beat()\n"
    )
    argv = [sys.executable, "-c", code]
    text = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    assert text.count("Timeout (") == 1
    assert "waits_for_nothing" in text
    assert re.search(r"a step of rank 3 took [3-9]\.\d s, run.train.stall_seconds is 1.5", text)


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> tuple[Results, str]:
    """A run whose weights are so large that its loss is not finite."""
    root = tmp_path_factory.mktemp("broken")
    results = make_results(root)
    settings(results, epochs=1, normalize=False, temperature=0.05)
    main(results.train_arguments(validate_every=0))
    content = torch.load(root / "train/model.pt", weights_only=True)
    content["state"]["video.project.weight"] *= 1e20
    content["state"]["text.fc2.weight"] *= 1e20
    torch.save(content, root / "big.pt")
    settings(results, normalize=False, temperature=0.05, init_from=str(root / "big.pt"))
    with pytest.raises(ValueError, match="step 0: ") as caught:
        main(results.train_arguments(state=root / "second"))
    return results, str(caught.value)


def dump_of(broken) -> Path:
    results, line = broken
    path = next((results.root / "second").glob("state-*/not-finite-*.json"))
    assert f"python -m trainer.train --replay {path}" in line
    return path


def test_a_replay_names_the_first_tensor_that_is_not_finite(broken, capsys):
    path = dump_of(broken)
    main(["--replay", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step 0: ")
    assert lines[1].startswith("as it was (fp32): the ")
    assert lines[2].startswith("in fp32: the ")
    assert lines[3].startswith("in fp32 at temperature 1: the ")
    assert lines[4] == "bag files: within their bounds"
    assert lines[5].startswith("conclusion: the activations overflow even so")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("video.project.weight", float("nan"), "the weight video.project.weight"),
        ("text.fc1.bias", 3e38, "the output of text.fc2"),
    ],
)
def test_a_replay_tells_weights_from_what_they_give(broken, tmp_path, name, value, found):
    dump = read_json(dump_of(broken))
    state = torch.load(dump_of(broken).with_name(dump["weights"]), weights_only=True)
    state[name].fill_(value)
    torch.save(state, tmp_path / dump["weights"])
    write_json(tmp_path / "dump.json", dump)
    assert replay(tmp_path / "dump.json").splitlines()[1] == f"as it was (fp32): {found}"


def test_a_replay_without_its_files_is_one_line(tmp_path):
    write_json(tmp_path / "no.json", {"step": 1})
    with pytest.raises(ValueError, match="is no dump of a step"):
        replay(tmp_path / "no.json")


def test_starts_are_recorded_and_the_first_difference_is_named(tmp_path, capsys):
    first, second = make_results(tmp_path / "a"), make_results(tmp_path / "b")
    main(first.train_arguments(validate_every=0))
    main(second.train_arguments(validate_every=0, save_every=2))
    record = json.loads((run_folder(first) / "start-step-00000000.json").read_text())
    assert record["world"] == 1
    assert record["machines"][0]["torch"] == torch.__version__
    assert {"inputs", "weights", "embeddings", "loss", "gradients"} <= record["fixed_batch"].keys()
    assert record["fixed_batch"]["shapes"]["bags"][1] == 3

    found = compare.differences(record, compare.read_start(run_folder(second)))
    assert [line for line in found if not line.startswith(("command", "machines"))] == []

    settings(second, lr=0.02)
    main(second.train_arguments(validate_every=0, state=tmp_path / "lr"))
    with pytest.raises(SystemExit):
        compare.main([str(run_folder(first)), str(next((tmp_path / "lr").glob("state-*")))])
    assert "first difference: settings.lr: 0.01 | 0.02" in capsys.readouterr().out

    other = json.loads(json.dumps(record))
    other["fixed_batch"]["embeddings"]["sha256"] = other["fixed_batch"]["loss"]["sha256"] = "x"
    assert compare.differences(record, other)[0].startswith("fixed_batch.embeddings.sha256: ")
    with pytest.raises(FileNotFoundError, match=r"name a run's own folder, such as \S+/state-"):
        compare.read_start(tmp_path / "lr")


def test_the_fixed_batch_waits_for_no_rank_and_changes_nothing(tmp_path):
    """A norm over all ranks exchanges only while it trains; rank 0 is alone with this batch."""
    data = step_data(make_results(tmp_path), norm="batch")
    model = build_model(data.settings, feature_dim=12, num_words=40, max_caption_words=5)
    modes, before = [], fingerprint(model)
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    assert "gradients" in fixed_batch(model, data, torch.device("cpu"))
    assert modes
    assert not any(modes)
    assert model.training
    assert fingerprint(model) == before


def test_the_odd_rank_and_its_version_are_named():
    machines = [describe_machine(World.alone()) for _ in range(3)]
    assert compare_machines(machines) == []
    machines[2] = machines[2] | {"torch": "1.0", "host": "node7"}
    line = f"rank 2 on node7 has torch 1.0, most have {torch.__version__}"
    assert compare_machines(machines) == [line]


def test_anomaly_names_the_operation(tmp_path, monkeypatch):
    results = make_results(tmp_path)
    settings(results, max_steps=1)

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("nan")

    from trainer.towers import VideoTower

    forward = VideoTower.forward
    monkeypatch.setattr(VideoTower, "forward", lambda *a: Bad.apply(forward(*a)))
    try:
        with pytest.raises(ValueError, match="rank 0: step 0: Function 'BadBackward' returned nan"):
            main(results.train_arguments(anomaly=1))
    finally:
        torch.autograd.set_detect_anomaly(False)


@pytest.mark.timeout(240)
def test_a_rehearsal_saves_resumes_and_leaves_nothing(tmp_path):
    results = make_results(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    argv = [sys.executable, "-m", "trainer.train", *results.train_arguments(), "--rehearse"]
    started = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stderr
    assert "the rehearsal passed: 8 steps on 2 ranks, saved step-00000004" in done.stderr
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert time.monotonic() - started < 200
