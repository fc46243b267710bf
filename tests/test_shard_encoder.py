"""Every video of a shard comes to its end, and every window is encoded once."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline import worker
from pipeline.formats.shard import read_index
from pipeline.worker import Worker
from tests.examples import manifest_row
from tests.small_shards import (
    SETTINGS,
    accepted,
    encode,
    outputs_in,
    statuses,
    windows_of,
)
from tests.stand_ins import Cramped, Means
from tests.videos import cut, steady, write_video


def test_every_window_is_encoded_once_in_batches_across_videos(rows, tmp_path):
    expected = sum(len(windows_of(row)) for row in rows[1:])
    encoder = Means(fail_after=-(-expected // 5))
    assert encode(rows, tmp_path / "out", encoder=encoder, batch=5)[0] == expected
    assert encoder.left == 0


def test_decoding_processes_change_no_byte(rows, tmp_path):
    alone = encode(rows, tmp_path / "alone")[1]
    assert encode(rows, tmp_path / "together", workers=2)[1] == alone


def test_faulty_videos_become_rows_and_do_not_stop_the_others(rows, tmp_path):
    page = tmp_path / "page.mp4"
    page.write_text("<html>")
    short = write_video(
        tmp_path / "cut.mp4", steady(100), container_options={"movflags": "+faststart"}
    )
    cut(short, 0.6)
    gone = dataclasses.replace(manifest_row("gone"), path=str(tmp_path / "gone.mp4"))
    rows = [accepted(page, "page", 4.0), gone, accepted(short, "cut", 4.0), *rows]
    settings = dataclasses.replace(SETTINGS, max_missing=0.1)
    encode(rows, tmp_path / "out", settings=settings, workers=1)
    found = statuses(tmp_path / "out")
    assert found.pop("page")[0] == "failed"
    assert found == {
        "gone": ("failed", "missing"),
        "cut": ("failed", "truncated"),
        "bad": ("rejected", "empty"),
        **{f"v.{k}": ("encoded", "") for k in (1, 2, 3)},
    }


def end_at_once(*_) -> None:
    """A process that dies before it says anything, as of a library that does not load."""


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [("START_SECONDS", 0.0, "timeout"), ("_serve", end_at_once, "crashed")],
)
def test_processes_that_never_begin_are_rows_and_the_videos_of_the_next_run(
    rows, tmp_path, monkeypatch, attribute, value, reason
):
    """One video is kept from before; the others fail by name until their processes begin."""
    encode(rows[:2], tmp_path / "out", workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(worker, attribute, value)
        encode(rows, tmp_path / "out", workers=1)
    good, *rest = read_index(tmp_path / "out" / "00000.parquet").rows[1:]
    assert (good.status, [(row.status, row.reason) for row in rest]) == (
        "encoded",
        [("failed", reason)] * 2,
    )
    assert all("process d" in row.error_message for row in rest)
    encode(rows, tmp_path / "out", workers=1)
    assert list(statuses(tmp_path / "out").values())[1:] == [("encoded", "")] * 3


def test_a_process_that_cannot_begin_once_costs_a_video_and_the_others_are_encoded(
    rows, tmp_path, monkeypatch
):
    begins = iter([0.0])
    real = Worker.next

    def first_too_late(self, seconds):
        with monkeypatch.context() as patch:
            patch.setattr(worker, "START_SECONDS", next(begins, worker.START_SECONDS))
            return real(self, seconds)

    monkeypatch.setattr(Worker, "next", first_too_late)
    encode(rows, tmp_path / "out", workers=1)
    assert list(statuses(tmp_path / "out").values())[1:] == [
        ("failed", "timeout"),
        ("encoded", ""),
        ("encoded", ""),
    ]


def test_a_cut_video_within_the_limit_is_encoded_and_flagged(tmp_path):
    short = write_video(
        tmp_path / "cut.mp4", steady(100), container_options={"movflags": "+faststart"}
    )
    cut(short, 0.6)
    settings = dataclasses.replace(SETTINGS, max_missing=0.9)
    encode([accepted(short, "cut", 4.0)], tmp_path / "out", settings=settings)
    row = read_index(tmp_path / "out" / "00000.parquet").rows[0]
    assert (row.status, row.truncated) == ("encoded", True)
    assert 0.5 < row.decoded_seconds < 3.5
    assert 0.1 < row.missing_fraction < 0.9


def test_out_of_memory_halves_the_batch_loses_no_clip_and_is_put_down(rows, tmp_path, caplog):
    encode(rows, tmp_path / "out", encoder=Cramped(), batch=8)
    encode(rows, tmp_path / "small", batch=2)
    assert "out of memory: batches of 2 windows from here on" in caplog.text
    tar, index = outputs_in(tmp_path / "out")
    assert tar.read_bytes() == (tmp_path / "small/00000.tar").read_bytes()
    assert read_index(index).provenance["batch"] == 2


def test_an_automatic_batch_is_put_down_and_a_run_without_work_keeps_it(rows, tmp_path):
    _, first = encode(rows, tmp_path / "out", encoder=Cramped(), batch="auto")
    batch = read_index(tmp_path / "out/00000.parquet").provenance["batch"]
    assert batch in (1, 2)
    assert encode(rows, tmp_path / "out", encoder=Means(fail_after=0), batch="auto") == (0, first)
    assert not (tmp_path / "out/.partial/00000").exists()


def test_features_that_overflow_name_the_video_and_leave_no_file(rows, tmp_path):
    class Huge(Means):
        def __call__(self, windows_BTHWC):
            return super().__call__(windows_BTHWC) * 1e6

    with pytest.raises(ValueError, match=r"features of 'v\.1' overflow float16"):
        encode(rows, tmp_path / "out", encoder=Huge())
    assert [path for path in tmp_path.glob("out/*") if path.is_file()] == []


def test_the_log_counts_and_gives_the_speed(rows, tmp_path, caplog):
    caplog.set_level("INFO")
    encode(rows, tmp_path / "out")
    assert "0 re-used, 3 encoded, 0 failed" in caplog.text
    assert "clips/s" in caplog.text
    assert "bottleneck" in caplog.text
    encode(rows, tmp_path / "out")
    assert "3 re-used, 0 encoded, 0 failed" in caplog.text
