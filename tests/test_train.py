"""Training runs end to end: they learn, resume exactly, stop in order, and fail in one line."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import socket
from dataclasses import asdict

import numpy as np
import pytest
import torch

from pipeline.formats.bags import VAL, read_bags, write_bags
from pipeline.formats.files import write_json
from tests.ranks import run_ranks
from tests.synthetic_bags import Results, make_results, results_with, train_settings
from tests.training_runs import checkpoint_steps, finish, launcher, losses, weights
from trainer.distributed import World
from trainer.model import load_model
from trainer.monitor import read_metrics
from trainer.train import main


def test_training_learns_and_writes_its_outputs(tmp_path):
    results = make_results(tmp_path, videos_of_shards=(40, 20))
    write_json(tmp_path / "settings/train.json", asdict(train_settings(epochs=20)))
    main(results.train_arguments(save_every=50))
    entries = read_metrics(tmp_path / "train/metrics.jsonl")
    training = [entry for entry in entries if "loss" in entry]
    validation = [entry for entry in entries if entry.get("split") == "val"]
    assert [entry["step"] for entry in training] == list(range(1, 161))
    assert training[-1]["samples"] == 160 * 12
    assert training[-1]["epoch"] == 19
    assert {"lr", "gradient_norm", "clip_std", "step_seconds", "clips_per_second"} <= set(
        training[0]
    )
    first, last = (np.mean([e["loss"] for e in part]) for part in (training[:5], training[-5:]))
    assert last < 0.8 * first
    assert validation[-1]["step"] == 160
    assert validation[-1]["mean_rank"] < 20  # of 72 clips; chance is 36.5
    model, metadata = load_model(tmp_path / "train/model.pt")
    assert metadata["step"] == 160
    assert metadata["max_caption_words"] == 5
    assert len(metadata["vocabulary"]) == 40
    assert not model.training
    assert next((tmp_path / "train").glob("state-*/best.pt"))


def test_the_learning_rate_rises_then_falls(tmp_path):
    results = results_with(tmp_path, epochs=10, warmup_samples=48, lr=0.02)
    main(results.train_arguments())
    rates = [e["lr"] for e in read_metrics(tmp_path / "train/metrics.jsonl") if "loss" in e]
    assert rates[:5] == pytest.approx([0.002, 0.0065, 0.011, 0.0155, 0.02])
    cosine = [0.01 * (1 + np.cos(np.pi * k / 16)) for k in range(16)]
    assert rates[4:] == pytest.approx(cosine)


def test_training_twice_gives_the_same_weights_and_a_finished_run_says_so(tmp_path, caplog):
    first, second = results_with(tmp_path / "a"), results_with(tmp_path / "b")
    main(first.train_arguments())
    main(second.train_arguments(workers=0, save_every=3, log_every=2, validate_every=0))
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name])
    before = losses(first)
    (tmp_path / "a/train/model.pt").unlink()
    (tmp_path / "a/train/metrics.jsonl").unlink()
    with caplog.at_level(logging.INFO):
        main(first.train_arguments())
    assert "already trained: all 8 steps" in caplog.text
    assert losses(first) == before
    assert all(torch.equal(v, weights(second)[n]) for n, v in weights(first).items())


def test_other_settings_and_other_data_start_anew(tmp_path, caplog):
    results = results_with(tmp_path)
    main(results.train_arguments())
    results_with(tmp_path / "other", lr=0.02)
    shutil.copy(tmp_path / "other/settings/train.json", tmp_path / "settings/train.json")
    with caplog.at_level(logging.INFO):
        main(results.train_arguments())
    path = tmp_path / "bags/00000.npz"
    bags = read_bags(path)
    write_bags(path, dataclasses.replace(bags, cap_start=bags.cap_start + 0.5))
    with caplog.at_level(logging.INFO):
        main(results.train_arguments())
    assert "resuming" not in caplog.text
    assert len(list((tmp_path / "train").glob("state-*"))) == 3


def test_the_log_says_what_will_happen(tmp_path, caplog):
    results = results_with(tmp_path, temperature=0.02, warmup_samples=1000, learn_temperature=False)
    with caplog.at_level(logging.INFO):
        main(results.train_arguments())
    for line in (
        "72 clips of 12 videos to train on, 12 clips of 2 videos to validate, in 3 shards",
        "8 steps, 2 an epoch; an epoch uses 12 videos (24 clips, up to 2 a visit) and drops 0",
        "a step visits 6 videos, up to 12 clips, 12 on each of 1 ranks",
        "a blind model's loss is 3.",
        "GB for the loss",
        "each step it sends 0 MB of gradients",
        "temperature 0.02 is below 0.03",
        "warmup_samples 1000 covers the whole run of 96 clips",
    ):
        assert line in caplog.text
    assert "steps are smaller" not in caplog.text


def test_a_batch_that_the_videos_cannot_fill_is_said(tmp_path, caplog):
    results = results_with(tmp_path, global_batch=1000, max_steps=1)
    with caplog.at_level(logging.INFO):
        main(results.train_arguments())
    line = "global_batch 1000 needs 500 videos of 2 clips, and there are 12: steps are smaller"
    assert line in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"symmetric": False, "exclusion": "none", "exclude_same_text": False},
        {"video_pool": "attention", "positive_weight": 2, "normalize": False, "temperature": 1.0},
        {"video_pool": "max", "video_head": "identity", "embedding_dim": 12},
        {"max_steps": 3, "exclusion": "same_video"},
    ],
)
def test_every_setting_trains(tmp_path, changes):
    results = results_with(tmp_path, **changes)
    main(results.train_arguments(validate_every=0))
    assert all(np.isfinite(loss) for loss in losses(results).values())
    assert len(losses(results)) == changes.get("max_steps", 8)


def test_init_from_starts_from_the_models_weights(tmp_path):
    first = results_with(tmp_path / "first", epochs=12)
    main(first.train_arguments(save_every=100, validate_every=0))
    warm = results_with(tmp_path / "warm", init_from=str(tmp_path / "first/train/model.pt"))
    main(warm.train_arguments())
    assert losses(warm)[1] < losses(first)[1] - 0.5


@pytest.mark.timeout(120)
def test_more_ranks_than_videos_is_one_line_at_the_end(tmp_path):
    results = results_with(tmp_path, global_batch=2)
    status, text = finish(launcher(results, 2))
    assert status == 1
    last = text.strip().split("\n")[-1]
    assert "2 ranks share 1 videos of a step (global_batch 2 / clips_per_video 2" in last


def main_on_a_rank(world: World, results: Results) -> list[str]:
    """How the run of a rank ends where only rank 1's validation clips are broken, or only rank 0
    finds that the run's folder cannot be looked into.
    """

    def validation(*_) -> None:
        if world.rank == 1:
            raise ValueError("a broken share")

    def checkpoint(*_) -> bytes:
        raise OSError("a broken folder")

    found = []
    for name, broken in (("Validation", validation), ("run.newest_checkpoint", checkpoint)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trainer.train.join", lambda _: world)
            patch.setattr(f"trainer.{name if '.' in name else f'train.{name}'}", broken)
            with pytest.raises((ValueError, SystemExit)) as ended:
                main(results.train_arguments())
        found.append(str(ended.value))
    return found


@pytest.mark.timeout(120)
def test_a_fault_of_one_rank_before_the_first_step_ends_all_ranks(tmp_path):
    first, second = run_ranks(main_on_a_rank, 2, make_results(tmp_path / "results"), tmp_path)
    host = socket.gethostname()
    assert first == [
        f"reading the validation clips failed on rank 1 on {host}: a broken share",
        f"reading checkpoints failed on rank 0 on {host}: a broken folder",
    ]
    assert second == ["1", "1"]


def failure(results: Results, **flags) -> str:
    with pytest.raises((ValueError, OSError)) as caught:
        main(results.train_arguments(**flags))
    return str(caught.value)


def test_nothing_to_train_on_is_named(tmp_path):
    results = make_results(tmp_path, videos_of_shards=(2,))
    path = tmp_path / "bags/00000.npz"
    bags = read_bags(path)
    write_bags(path, dataclasses.replace(bags, video_split=np.full(2, VAL, "|i1")))
    assert "no video of the train split has a clip in 1 bag files" in failure(results)


def test_another_vocabulary_is_named(tmp_path):
    results = make_results(tmp_path)
    path = tmp_path / "vocabulary.txt"
    path.write_text(path.read_text() + "more\n")
    assert "is not the vocabulary of" in failure(results)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    results = results_with(tmp_path)
    main(results.train_arguments())
    expected = weights(results)
    newest = next((tmp_path / "train").glob("state-*/step-00000008.checkpoint"))
    newest.write_bytes(newest.read_bytes()[:-10])
    with caplog.at_level(logging.INFO):
        main(results.train_arguments())
    assert "step-00000008.checkpoint is damaged and skipped" in caplog.text
    assert all(torch.equal(value, weights(results)[name]) for name, value in expected.items())


def test_a_gradient_that_is_not_finite_stops_before_the_update(tmp_path):
    results = results_with(tmp_path, init_from=str(tmp_path / "big.pt"), normalize=False)
    fresh = results_with(tmp_path / "fresh", epochs=1, normalize=False)
    main(fresh.train_arguments())
    content = torch.load(tmp_path / "fresh/train/model.pt", weights_only=True)
    content["state"]["video.project.weight"] *= 1e25
    torch.save(content, tmp_path / "big.pt")
    line = failure(results)
    assert "step 0: " in line
    assert "the weights are those of the step before" in line
    dump = json.loads(next((tmp_path / "train").glob("state-*/not-finite-*.json")).read_text())
    assert len(dump["clip_ids"]) == 12
    assert checkpoint_steps(results) == []
