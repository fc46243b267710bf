"""Encoding a shard: right features, a row for every video, and only what changed is encoded."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset

from pipeline.encode import main
from pipeline.encoders.interface import load_encoder
from pipeline.encoders.machine import choose_device
from pipeline.formats.files import write_json
from pipeline.formats.manifest import ManifestRow, write_manifest
from pipeline.formats.shard import read_features, read_index
from pipeline.pixels import Geometry
from pipeline.reuse import RETRY_ALL, Retry
from pipeline.shard_encoder import encode_rows
from pipeline.video import VideoReader
from tests.examples import encode_settings, manifest_row
from tests.videos import cut, numbered, steady, write_video

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = encode_settings(
    sampling={"frame_rate": 8, "frames": 4, "stride_seconds": 0.25, "tail": "repeat"}
)


class Means:
    """Stands in for a network: the mean colours of a window; counts and may fail."""

    name, weights_sha256, feature_dim = "s3d", "ab", 3
    geometry, device = Geometry(frame_size=32), torch.device("cpu")

    def __init__(self, fail_after: int = 10**9):
        self.left = fail_after
        self.seen = 0

    def __call__(self, windows_BTHWC):
        if self.left == 0:
            raise RuntimeError("the power went out")
        self.left -= 1
        used = windows_BTHWC.flatten(1).any(dim=1)
        self.seen += int(used.sum())
        return windows_BTHWC.float().mean(dim=(1, 2, 3)) / 255


def accepted(path: Path, video_id: str, seconds: float) -> ManifestRow:
    found = path.stat()
    return dataclasses.replace(
        manifest_row(video_id),
        path=str(path),
        duration_seconds=seconds,
        size_bytes=found.st_size,
        mtime_ns=found.st_mtime_ns,
    )


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Videos of 1, 2 and 3 s whose frames bear different numbers."""
    folder = tmp_path_factory.mktemp("originals")
    for k in (1, 2, 3):
        write_video(folder / f"{k}.mp4", steady(25 * k), draw=lambda i, k=k: numbered(1000 * k + i))
    return folder


@pytest.fixture
def rows(originals, tmp_path):
    """A manifest: a rejected video, and three that are good, in files of this test alone."""
    folder = shutil.copytree(originals, tmp_path / "videos")
    good = [accepted(folder / f"{k}.mp4", f"v.{k}", float(k)) for k in (1, 2, 3)]
    return [manifest_row("bad", "empty", "0 bytes"), *good]


def outputs_in(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    return folder / "00000.tar", folder / "00000.parquet"


def encode(rows, folder, *, settings=SETTINGS, encoder=None, batch=4, workers=0, retry=RETRY_ALL):
    """Encode and return how many windows the encoder saw, and the bytes of both outputs."""
    encoder = encoder or Means()
    outputs = outputs_in(folder)
    encode_rows(rows, settings, encoder, outputs, batch=batch, workers=workers, retry=retry)
    return encoder.seen, [path.read_bytes() for path in outputs]


def arguments_for(folder: Path, rows: list[ManifestRow]) -> list[str]:
    """Write what the command reads, and return its arguments."""
    write_manifest(folder / "manifest.parquet", rows)
    write_json(folder / "encode.json", dataclasses.asdict(SETTINGS))
    tar, index = outputs_in(folder / "out")
    arguments = ["--manifest", str(folder / "manifest.parquet")]
    arguments += ["--settings", str(folder / "encode.json"), "--output", str(tar)]
    return [*arguments, "--index", str(index), "--batch", "2", "--threads", "1"]


@pytest.fixture
def command():
    """The command, run in this process; its threads are set back."""
    threads = torch.get_num_threads()
    yield main
    torch.set_num_threads(threads)


def windows_of(row: ManifestRow) -> np.ndarray:
    geometry = Geometry(frame_size=SETTINGS.frame_size)
    reader = VideoReader(row.path, sampling=SETTINGS.grid, geometry=geometry)
    return np.stack([window.copy() for window in reader.windows()])


def statuses(folder: Path) -> dict[str, tuple[str, str]]:
    return {r.video_id: (r.status, r.reason) for r in read_index(folder / "00000.parquet").rows}


def test_the_command_writes_a_shard_of_s3d_features_that_webdataset_streams(
    rows, tmp_path, command
):
    command([*arguments_for(tmp_path, rows), "--workers", "0", "--device", "cpu"])
    tar, index = outputs_in(tmp_path / "out")
    samples = list(webdataset.WebDataset(str(tar), shardshuffle=False))
    assert [json.loads(s["json"])["video_id"] for s in samples] == ["v.1", "v.2", "v.3"]
    encoder = load_encoder(SETTINGS, "cpu")
    for row, sample, entry in zip(rows[1:], samples, read_index(index).rows[1:], strict=True):
        streamed = np.load(io.BytesIO(sample["features.npy"]), allow_pickle=False)
        alone = encoder(torch.from_numpy(windows_of(row))).numpy()
        np.testing.assert_allclose(streamed, alone, rtol=2e-3, atol=2e-3)
        with open(tar, "rb") as file:
            found = read_features(file.fileno(), entry.offset, 1024, 0, entry.num_vectors)
        assert np.array_equal(found, streamed)
    assert statuses(tmp_path / "out")["bad"] == ("rejected", "empty")
    recipe = read_index(index).recipe
    assert (recipe.weights_sha256, recipe.feature_dim) == (encoder.weights_sha256, 1024)


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


def test_a_shard_without_a_good_video_is_an_empty_tar(tmp_path):
    encode([manifest_row("bad", "empty")], tmp_path / "out", workers=2)
    tar = str(tmp_path / "out/00000.tar")
    assert list(webdataset.WebDataset(tar, shardshuffle=False, empty_check=False)) == []
    assert statuses(tmp_path / "out") == {"bad": ("rejected", "empty")}


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


class Cramped(Means):
    """Has room for three windows at a time."""

    def __call__(self, windows_BTHWC):
        if len(windows_BTHWC) > 3:
            raise torch.OutOfMemoryError
        return super().__call__(windows_BTHWC)


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


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--batch", "0"], "--batch is 0, must be at least 1"),
        (["--workers", "-1"], "--workers is -1, must be at least 0"),
        (["--threads", "0"], "--threads is 0, must be at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(extra, message):
    paths = ["--manifest", "m", "--settings", "s", "--output", "o", "--index", "i"]
    with pytest.raises(ValueError, match=message):
        main([*paths, *extra])


def test_decoding_processes_need_no_torch():
    code = "import sys, pipeline.encode, pipeline.decode_pool; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_gpu_that_is_not_there_is_one_line():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match="--device is cuda, but no GPU"):
        choose_device("cuda")
    assert choose_device("auto") == "cpu"


def test_nvdec_that_does_not_work_is_one_line_and_the_cpu_decodes(rows, tmp_path, caplog):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    _, first = encode(rows, tmp_path / "cpu")
    encode_rows(
        rows, SETTINGS, Means(), outputs_in(tmp_path / "gpu"), batch=4, workers=0, decoder="nvdec"
    )
    assert [path.read_bytes() for path in outputs_in(tmp_path / "gpu")] == first
    assert "NVDEC does not work here" in caplog.text


def start(folder: Path, rows: list[ManifestRow]) -> subprocess.Popen:
    """The command in a process of its own, slow enough to be met at work."""
    command = [sys.executable, "-m", "pipeline.encode", *arguments_for(folder, rows)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def wait_for_pieces(folder: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("out/.partial/00000/*.npz"))) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def long_rows(rows, tmp_path):
    """Two short videos, then one that takes a while."""
    times = steady(250)
    path = write_video(tmp_path / "long.mp4", times, draw=lambda i: numbered(i, 32, 32))
    return [*rows[:3], accepted(path, "long", 10.0)]


def test_after_kill_minus_9_the_next_run_re_uses_what_was_done_and_gives_the_same_bytes(
    long_rows, tmp_path, command, caplog
):
    process = start(tmp_path, long_rows)
    wait_for_pieces(tmp_path, 2, process)
    process.kill()
    process.communicate()
    assert list((tmp_path / "out").glob("00000.*")) == []
    caplog.set_level("INFO")
    command(arguments_for(tmp_path, long_rows))
    assert "2 re-used, 1 encoded, 0 failed" in caplog.text
    found = [path.read_bytes() for path in outputs_in(tmp_path / "out")]
    shutil.rmtree(tmp_path / "out")
    command(arguments_for(tmp_path, long_rows))
    assert "0 re-used, 3 encoded, 0 failed" in caplog.text
    assert [path.read_bytes() for path in outputs_in(tmp_path / "out")] == found


def children_of(process: subprocess.Popen) -> list[str]:
    """Process ids of what `process` has started and is alive."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, parent, *_ = file.read_text().rpartition(")")[2].split()
            found += [file.parent.name] if int(parent) == process.pid else []
    return found


def works(pid: str) -> bool:
    """Whether a process runs: one that is over but not yet collected has no command line."""
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


def test_after_kill_minus_9_at_random_moments_the_bytes_are_those_of_an_undisturbed_run(
    long_rows, tmp_path, command
):
    began = time.monotonic()
    undisturbed = start(tmp_path, long_rows)
    undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0
    seconds = time.monotonic() - began
    expected = [path.read_bytes() for path in outputs_in(tmp_path / "out")]
    shutil.rmtree(tmp_path / "out")
    draw = random.Random(0)
    killed = 0
    for _ in range(3):
        process = start(tmp_path, long_rows)
        time.sleep(draw.uniform(0.3, 0.8) * seconds)
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed
    command(arguments_for(tmp_path, long_rows))
    assert [path.read_bytes() for path in outputs_in(tmp_path / "out")] == expected
    assert not (tmp_path / "out/.partial/00000").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_without_a_trace(long_rows, tmp_path, number, status):
    process = start(tmp_path, long_rows)
    wait_for_pieces(tmp_path, 2, process)
    decoders = children_of(process)
    assert decoders
    process.send_signal(number)
    log = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert "Traceback" not in log
    assert list((tmp_path / "out").rglob("*.tmp")) == []
    assert list((tmp_path / "out").glob("00000.*")) == []
    deadline = time.monotonic() + 10
    while any(works(pid) for pid in decoders):
        assert time.monotonic() < deadline, "a decoding process outlives its command"
        time.sleep(0.05)
