"""A shard and its index, also where nothing is good and where NVDEC does not work."""

from __future__ import annotations

import pytest
import torch
import webdataset

from pipeline.encode_shard import encode_rows
from pipeline.shard_encoder import EncodeRun
from tests.examples import manifest_row
from tests.small_shards import SETTINGS, encode, outputs_in, statuses
from tests.stand_ins import Means


def test_a_shard_without_a_good_video_is_an_empty_tar(tmp_path):
    encode([manifest_row("bad", "empty")], tmp_path / "out", workers=2)
    tar = str(tmp_path / "out/00000.tar")
    assert list(webdataset.WebDataset(tar, shardshuffle=False, empty_check=False)) == []
    assert statuses(tmp_path / "out") == {"bad": ("rejected", "empty")}


def test_nvdec_that_does_not_work_is_one_line_and_the_cpu_decodes(rows, tmp_path, caplog):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    _, first = encode(rows, tmp_path / "cpu")
    run = EncodeRun(batch=4, workers=0, decoder="nvdec")
    encode_rows(rows, SETTINGS, Means(), outputs_in(tmp_path / "gpu"), run)
    assert [path.read_bytes() for path in outputs_in(tmp_path / "gpu")] == first
    assert "NVDEC does not work here" in caplog.text
