"""The blacklist: every video without features, with the stage that refused it."""

from __future__ import annotations

import csv

import pytest

from pipeline.formats.manifest import ManifestRow, write_manifest
from pipeline.formats.plan import write_planned_videos
from pipeline.formats.shard import EncodedVideo, VideoFacts
from pipeline.formats.shard_writer import write_shard
from pipeline.rejected import main
from tests.examples import manifest_row, recipe

RECIPE = recipe(feature_dim=2)
HEADER = ["video_id", "path", "stage", "reason", "message"]


def facts(video_id: str, status: str, reason: str = "", message: str = "") -> EncodedVideo:
    found = VideoFacts(
        video_id=video_id,
        status=status,
        reason=reason,
        error_message=message,
        num_frames=0,
        decoded_seconds=0.0,
        declared_seconds=4.0,
        truncated=False,
        bad_packets=0,
        size_bytes=1,
        mtime_ns=1,
    )
    return EncodedVideo(facts=found, features=None)


def write_results(root, shards: dict[str, list[tuple[ManifestRow, EncodedVideo]]]) -> list[str]:
    for name, rows in shards.items():
        write_planned_videos(root / "plan" / f"{name}.tsv", [])
        write_manifest(root / "manifest" / f"{name}.parquet", [row for row, _ in rows])
        outputs = root / "shards" / f"{name}.tar", root / "shards" / f"{name}.parquet"
        write_shard(*outputs, [video for _, video in rows], RECIPE, {})
    folders = ("--plan", "plan", "--manifests", "manifest", "--shards", "shards")
    arguments = [name if name.startswith("--") else str(root / name) for name in folders]
    return [*arguments, "--output", str(root / "rejected.csv")]


def test_rejected_and_failed_videos_are_listed_by_shard_and_row(tmp_path):
    arguments = write_results(
        tmp_path,
        {
            "00001": [(manifest_row("e", "missing", "no file"), facts("e", "rejected", "missing"))],
            "00000": [
                (manifest_row("d"), facts("d", "failed", "truncated", 'cut, "early"')),
                (manifest_row("ok"), facts("ok", "encoded")),
                (manifest_row("a", "empty", "0 bytes"), facts("a", "rejected", "empty")),
            ],
        },
    )
    main(arguments)
    first = (tmp_path / "rejected.csv").read_bytes()
    with open(tmp_path / "rejected.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            HEADER,
            ["d", "videos/d", "encode", "truncated", 'cut, "early"'],
            ["a", "videos/a", "manifest", "empty", "0 bytes"],
            ["e", "videos/e", "manifest", "missing", "no file"],
        ]
    main(arguments)
    assert (tmp_path / "rejected.csv").read_bytes() == first


def test_shards_of_an_older_plan_are_not_listed(tmp_path):
    rows = [(manifest_row("e", "missing"), facts("e", "rejected", "missing"))]
    arguments = write_results(tmp_path, {"00000": [], "00001": rows})
    (tmp_path / "plan" / "00001.tsv").unlink()
    main(arguments)
    assert (tmp_path / "rejected.csv").read_text() == ",".join(HEADER) + "\n"


@pytest.mark.parametrize(
    ("folder", "rule"), [("manifest", "rule manifest"), ("shards", "rule encode")]
)
def test_a_missing_part_is_named_with_its_rule_and_the_old_list_stays(tmp_path, folder, rule):
    arguments = write_results(tmp_path, {"00000": []})
    main(arguments)
    (tmp_path / folder / "00000.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=rf"{folder}/00000\.parquet is missing.*{rule}"):
        main(arguments)
    assert (tmp_path / "rejected.csv").exists()


def test_an_index_of_another_plan_is_refused(tmp_path):
    arguments = write_results(tmp_path, {"00000": [(manifest_row("a"), facts("b", "encoded"))]})
    with pytest.raises(ValueError, match="lists other videos"):
        main(arguments)
