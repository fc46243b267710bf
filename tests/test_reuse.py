"""Only what changed is encoded again, and the bytes are those of a fresh run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from pipeline.formats.shard import read_index
from pipeline.reuse import Retry
from tests.examples import manifest_row
from tests.small_shards import (
    SETTINGS,
    accepted,
    encode,
    outputs_in,
    statuses,
    windows_of,
)
from tests.stand_ins import Means
from tests.videos import cut, steady, write_video


def test_a_second_run_encodes_nothing_and_gives_the_same_bytes(rows, tmp_path):
    _, first = encode(rows, tmp_path / "out")
    for path in outputs_in(tmp_path / "out"):
        path.unlink()
    seen, second = encode(rows, tmp_path / "out")
    assert (seen, second) == (0, first)
    assert not (tmp_path / "out/.partial/00000").exists()


def test_a_replaced_video_is_the_only_one_encoded_again(rows, originals, tmp_path):
    encode(rows, tmp_path / "out")
    shutil.copy(originals / "3.mp4", tmp_path / "videos" / "1.mp4")
    changed = [rows[0], accepted(tmp_path / "videos" / "1.mp4", "v.1", 3.0), *rows[2:]]
    seen, found = encode(changed, tmp_path / "out")
    assert seen == len(windows_of(changed[1]))
    assert found == encode(changed, tmp_path / "fresh")[1]


def test_added_and_removed_videos_leave_the_others_alone(rows, tmp_path):
    encode(rows[:3], tmp_path / "out")
    changed = [rows[0], manifest_row("v.1", "removed"), rows[2], rows[3]]
    seen, found = encode(changed, tmp_path / "out")
    assert seen == len(windows_of(rows[3]))
    assert found == encode(changed, tmp_path / "fresh")[1]


def test_another_recipe_encodes_everything_again(rows, tmp_path):
    seen, _ = encode(rows, tmp_path / "out")
    newer = dataclasses.replace(SETTINGS, feature_version=2)
    assert encode(rows, tmp_path / "out", settings=newer)[0] == seen
    assert read_index(tmp_path / "out/00000.parquet").recipe.feature_version == 2


def test_after_a_failed_encode_with_new_settings_nothing_old_is_re_used(rows, tmp_path):
    total, _ = encode(rows, tmp_path / "out")
    newer = dataclasses.replace(SETTINGS, feature_version=2)
    # What Snakemake does: it deletes the outputs before the job, and after it failed.
    for path in outputs_in(tmp_path / "out"):
        path.unlink()
    failing = Means(fail_after=4)
    with pytest.raises(RuntimeError, match="power"):
        encode(rows, tmp_path / "out", settings=newer, encoder=failing)
    assert not any(path.exists() for path in outputs_in(tmp_path / "out"))
    seen, found = encode(rows, tmp_path / "out", settings=newer)
    assert found == encode(rows, tmp_path / "fresh", settings=newer)[1]
    finished = len(windows_of(rows[1])) + len(windows_of(rows[2]))
    assert seen == total - finished


def test_going_back_to_old_settings_after_a_failure_re_uses_the_old_features(rows, tmp_path):
    _, first = encode(rows, tmp_path / "out")
    newer = dataclasses.replace(SETTINGS, feature_version=2)
    with pytest.raises(RuntimeError, match="power"):
        encode(rows, tmp_path / "out", settings=newer, encoder=Means(fail_after=4))
    assert encode(rows, tmp_path / "out") == (0, first)


def test_failed_videos_are_tried_again(rows, tmp_path):
    path = Path(rows[2].path)
    away = path.rename(path.with_suffix(".away"))
    encode(rows, tmp_path / "out")
    assert statuses(tmp_path / "out")["v.2"] == ("failed", "missing")
    away.rename(path)
    seen, found = encode(rows, tmp_path / "out")
    assert seen == len(windows_of(rows[2]))
    assert found == encode(rows, tmp_path / "fresh")[1]


@pytest.mark.parametrize(
    ("retry", "seen"), [("all", True), ("none", False), ("missing", True), ("timeout", False)]
)
def test_failures_are_tried_again_by_reason(rows, tmp_path, retry, seen):
    path = Path(rows[2].path)
    away = path.rename(path.with_suffix(".away"))
    _, first = encode(rows, tmp_path / "out")
    away.rename(path)
    found, second = encode(rows, tmp_path / "out", retry=Retry.parse(retry))
    assert found == (len(windows_of(rows[2])) if seen else 0)
    assert (second == first) is not seen
    assert statuses(tmp_path / "out")["v.2"] == (("encoded", "") if seen else ("failed", "missing"))


def test_a_failure_of_another_file_or_recipe_is_always_tried_again(rows, originals, tmp_path):
    Path(rows[2].path).write_text("<html>")
    broken = [rows[0], rows[1], accepted(Path(rows[2].path), "v.2", 2.0), rows[3]]
    encode(broken, tmp_path / "out")
    shutil.copy(originals / "2.mp4", rows[2].path)
    mended = [rows[0], rows[1], accepted(Path(rows[2].path), "v.2", 2.0), rows[3]]
    never = Retry.parse("none")
    assert encode(mended, tmp_path / "out", retry=never)[0] == len(windows_of(rows[2]))
    newer = dataclasses.replace(SETTINGS, feature_version=2)
    encode(broken, tmp_path / "out", settings=newer, retry=never)
    assert statuses(tmp_path / "out")["v.2"] == ("encoded", "")


def test_wider_limits_try_a_refused_video_again_also_without_retry(tmp_path):
    short = write_video(
        tmp_path / "cut.mp4", steady(100), container_options={"movflags": "+faststart"}
    )
    cut(short, 0.6)
    rows, never = [accepted(short, "cut", 4.0)], Retry.parse("none")
    strict = dataclasses.replace(SETTINGS, max_missing=0.01)
    encode(rows, tmp_path / "out", settings=strict)
    seen, _ = encode(rows, tmp_path / "out", settings=strict, retry=never)
    assert (seen, statuses(tmp_path / "out")["cut"]) == (0, ("failed", "truncated"))
    wide = dataclasses.replace(SETTINGS, max_missing=0.9)
    _, found = encode(rows, tmp_path / "out", settings=wide, retry=never)
    assert statuses(tmp_path / "out")["cut"] == ("encoded", "")
    assert found == encode(rows, tmp_path / "fresh", settings=wide)[1]


def test_a_reason_that_is_none_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="retry is 'missing,lost', allowed: all, none, or some of"):
        Retry.parse("missing,lost")


def test_limits_judge_re_used_features_as_new_ones(rows, tmp_path):
    short = write_video(
        tmp_path / "cut.mp4", steady(100), container_options={"movflags": "+faststart"}
    )
    cut(short, 0.6)
    rows = [*rows, accepted(short, "cut", 4.0)]
    encode(rows, tmp_path / "out", settings=dataclasses.replace(SETTINGS, max_missing=0.9))
    strict = dataclasses.replace(SETTINGS, max_missing=0.01)
    seen, found = encode(rows, tmp_path / "out", settings=strict)
    assert seen == 0
    assert statuses(tmp_path / "out")["cut"] == ("failed", "truncated")
    assert found == encode(rows, tmp_path / "fresh", settings=strict)[1]


def test_a_file_that_changed_since_the_manifest_is_recorded_as_it_was(rows, originals, tmp_path):
    shutil.copy(originals / "3.mp4", rows[1].path)
    encode(rows, tmp_path / "out")
    row = read_index(tmp_path / "out/00000.parquet").rows[1]
    assert row.size_bytes == (originals / "3.mp4").stat().st_size != rows[1].size_bytes
    assert encode(rows, tmp_path / "out")[0] == len(windows_of(rows[1]))


@pytest.mark.parametrize("damage", ["bit", "cut", "gone", "index"])
def test_damaged_features_of_the_last_run_are_encoded_again(rows, tmp_path, damage):
    total, first = encode(rows, tmp_path / "out")
    previous = tmp_path / "out/.previous/00000.tar"
    row = read_index(tmp_path / "out/00000.parquet").rows[2]
    data = bytearray(previous.read_bytes())
    data[row.offset + 3] ^= 1
    for path in (*outputs_in(tmp_path / "out"), previous):
        path.unlink()
    expected = {"bit": row.num_vectors, "cut": total, "gone": total, "index": total}[damage]
    if damage != "gone":
        previous.write_bytes(data[: 512 if damage == "cut" else len(data)])
    if damage == "index":
        previous.with_suffix(".parquet").write_bytes(b"PAR1")
    seen, second = encode(rows, tmp_path / "out")
    assert second == first
    assert seen == expected


def test_a_damaged_piece_of_a_killed_run_is_encoded_again(rows, tmp_path):
    with pytest.raises(RuntimeError, match="power"):
        encode(rows, tmp_path / "out", encoder=Means(fail_after=4))
    pieces = sorted((tmp_path / "out/.partial/00000").iterdir())
    assert len(pieces) == 2
    pieces[0].write_bytes(b"x")
    _, found = encode(rows, tmp_path / "out")
    assert found == encode(rows, tmp_path / "fresh")[1]


def test_where_files_cannot_be_linked_they_are_copied(rows, tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError("no links here")

    monkeypatch.setattr("pipeline.reuse.os.link", refuse)
    _, first = encode(rows, tmp_path / "out")
    assert encode(rows, tmp_path / "out") == (0, first)
    assert sorted(path.name for path in (tmp_path / "out/.previous").iterdir()) == [
        "00000.parquet",
        "00000.tar",
    ]
