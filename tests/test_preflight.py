"""What is refused before the first step."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from pipeline.formats.bags import TRAIN
from pipeline.formats.vocabulary import write_vocabulary
from tests.synthetic_bags import NUM_WORDS, files_of, make_results, step_data, train_settings
from trainer.bag_index import open_index
from trainer.batch_parts import micro_batches
from trainer.distributed import World
from trainer.loss import mil_nce_loss
from trainer.preflight import (
    check_device,
    describe_run,
    global_exclusion,
    plan_run,
    read_words,
    warn_of_data,
)


@pytest.mark.parametrize(
    ("changes", "chunk", "line"),
    [
        ({"norm": "sync_batch"}, 0, r"norm sync_batch needs GPUs.*: set train\.norm: layer"),
        ({"comm_hook": "bf16_compress"}, 0, r"needs NCCL on GPUs: set .*: fp16_compress"),
        ({"norm": "batch"}, 4, r"norm batch would see the chunks of run\.train\.chunk one by one"),
        ({"plain_accumulation": 2}, 4, "plain_accumulation is for comparison alone"),
        ({"plain_accumulation": 2, "bank_clips": 9}, 0, "plain_accumulation is for comparison"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_first_step(changes, chunk, line):
    with pytest.raises(ValueError, match=line):
        check_device(train_settings(**changes), torch.device("cpu"), chunk=chunk)


def test_batch_norm_is_for_one_rank_and_more_than_one_video(tmp_path):
    settings = train_settings(norm="batch")
    check_device(settings, torch.device("cpu"), chunk=0, num_ranks=1)
    with pytest.raises(ValueError, match=r"norm batch would give each of 2 ranks means of its own"):
        check_device(settings, torch.device("cpu"), chunk=0, num_ranks=2)
    index = open_index(files_of(make_results(tmp_path)))
    single = train_settings(norm="batch", global_batch=2, clips_per_video=2)
    with pytest.raises(ValueError, match="norm batch needs the clips of two videos in a step"):
        plan_run(index, single, 1)


def test_what_would_show_hours_later_is_said_before(tmp_path, caplog):
    index = open_index(files_of(make_results(tmp_path, videos_of_shards=(4,))))
    warn_of_data(index, num_val=1)
    assert caplog.messages == []
    warn_of_data(index, num_val=0)
    assert "no video is left to validate on" in caplog.messages[0]
    index.bags[0].metadata["counts"] = {"words_of_captions": 100, "words_not_in_vocabulary": 31}
    warn_of_data(index, num_val=1)
    assert "31 % of the captions' words are not in the vocabulary" in caplog.messages[1]
    assert "snakemake -R vocabulary counts again" in caplog.messages[1]


def test_words_come_in_the_order_of_their_ids_and_another_vocabulary_is_refused(tmp_path):
    results = make_results(tmp_path)
    index, path = open_index(files_of(results)), results.root / "vocabulary.txt"
    assert read_words(path, index) == [f"word{number}" for number in range(1, NUM_WORDS + 1)]
    write_vocabulary(path, ["other", "words"])
    with pytest.raises(ValueError, match=r"vocabulary\.txt is not the vocabulary of .*00000\.npz"):
        read_words(path, index)


def test_the_number_of_steps_follows_from_videos_visits_and_epochs(tmp_path):
    index = open_index(files_of(make_results(tmp_path)))
    videos = sum(len(of_shard) for of_shard in index.videos(TRAIN))
    settings = train_settings(global_batch=4, clips_per_video=2, epochs=3)
    assert plan_run(index, settings, 2).num_steps == 3 * (videos // 2)
    assert plan_run(index, train_settings(max_steps=5), 2).num_steps == 5
    with pytest.raises(ValueError, match=r"7 ranks share 6 videos of a step .*use fewer ranks"):
        plan_run(index, train_settings(), 7)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_blind_models_loss_is_that_of_embeddings_that_are_all_alike(tmp_path, caplog, parts):
    """With plain accumulation the captions of a part are no negatives of another's clips."""
    data = step_data(make_results(tmp_path), plain_accumulation=parts, exclude_same_text=False)
    batch, losses = data[0], []
    for part in micro_batches(batch, parts):
        counts_W3 = np.array([[len(part.clip_ids_B), len(part.caption_ids_N), part.num_valid]])
        rows = (torch.ones(count, 2) for count in counts_W3[0, :2].tolist())
        excluded = global_exclusion(data.settings, part, counts_W3, World.alone())
        losses.append(
            mil_nce_loss(*rows, part.bag_idx_BA, temperature=1, excluded_E2=excluded).item()
        )
    found = describe_run(data, 1, torch.device("cpu"))
    assert found == pytest.approx(np.mean(losses))  # parts of equal size


@pytest.mark.parametrize(("size", "said"), [(3, True), (4, False), (16, False), (17, True)])
def test_unusual_sizes_of_bags_get_a_line_of_advice(tmp_path, caplog, size, said):
    index = open_index(files_of(make_results(tmp_path, videos_of_shards=(4,))))
    index.bag_size = size
    with caplog.at_level(logging.INFO):
        warn_of_data(index, num_val=1)
    assert (f"bags.bag_size is {size}: " in caplog.text) is said
