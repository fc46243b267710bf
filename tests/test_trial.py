"""The real trial: real narrated videos through the whole flow, with random S3D weights."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from pipeline.formats.bags import read_bags
from pipeline.formats.manifest import read_manifest
from pipeline.formats.shard import read_index
from pipeline.tools import catalog
from tests.workflow_runs import ROOT, snakemake
from trainer.model import load_model

pytestmark = [pytest.mark.real, pytest.mark.workflow]


@pytest.fixture(scope="module")
def trial(tmp_path_factory, request) -> Path:
    """A folder in which the whole flow ran over the trial's videos."""
    real = request.getfixturevalue("real_data") / "trial"
    folder = tmp_path_factory.mktemp("trial")
    (folder / "captions").symlink_to(real / "captions")
    catalog.main(["--root", str(real / "videos"), "--output", str(folder / "videos.csv")])
    shutil.copy(ROOT / "tests/trial_config.yaml", folder / "my.yaml")
    snakemake(folder)
    return folder


def test_every_video_is_accepted_and_encoded(trial):
    manifest = [
        row
        for path in sorted((trial / "results/manifest").glob("*"))
        for row in read_manifest(path)
    ]
    assert len(manifest) == 10
    assert [row.video_id for row in manifest if not row.accepted] == []
    indexes = [read_index(path) for path in sorted((trial / "results/shards").glob("*.parquet"))]
    rows = [row for index in indexes for row in index.rows]
    assert [row.video_id for row in rows if not row.encoded] == []
    for row in rows:
        # half-hertz: a vector every two seconds of what was decoded
        assert abs(row.num_vectors - row.decoded_seconds / 2) <= 1, row.video_id
        assert row.declared_seconds == 0 or abs(row.declared_seconds - row.decoded_seconds) < 2
    assert (trial / "results/rejected.csv").read_text().count("\n") == 1


def test_every_video_has_bags(trial):
    bags = [read_bags(path) for path in sorted((trial / "results/bags").glob("*.npz"))]
    assert sum(bag.num_videos for bag in bags) == 10
    assert sum(bag.num_clips for bag in bags) > 100


def test_model_and_evaluation_are_there_and_finite(trial):
    model, *_ = load_model(trial / "results/train/model.pt")
    assert all(value.isfinite().all() for value in model.state_dict().values())
    results = json.loads((trial / "results/evaluate/heldout.json").read_text())
    numbers = list(_numbers(results))
    assert numbers
    assert all(map(math.isfinite, numbers))
    losses = [
        json.loads(line).get("loss", 0.0)
        for line in (trial / "results/train/metrics.jsonl").read_text().splitlines()
    ]
    assert all(map(math.isfinite, losses))
    assert "Bagpipe trial" in (trial / "results/report/index.html").read_text(encoding="utf-8")


def _numbers(value: object):
    """All numbers of a JSON document."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value
