"""Every way in which a shard can be wrong is named in one line, with the command that mends it."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.files import sha256_of_file
from pipeline.formats.parquet import write_table
from pipeline.formats.plan import PlannedVideo, write_planned_videos
from pipeline.formats.shard import SCHEMA, VERSION, read_index
from pipeline.formats.shard_writer import write_shard
from pipeline.tools.verify import main
from tests.encoded_videos import IDS, RECIPE, failed, video
from tests.fuzzing import bounded_memory

ROOT = Path(__file__).resolve().parents[1]
SHARDS = ([*IDS[:4], "gone"], IDS[4:7], IDS[7:])


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """A results folder with three good shards and their plan, and the way to it."""
    monkeypatch.chdir(tmp_path)
    for number, ids in enumerate(SHARDS):
        name = f"results/shards/{number:05d}"
        videos = [failed(i) if i == "gone" else video(i, seed=number) for i in ids]
        write_shard(f"{name}.tar", f"{name}.parquet", videos, RECIPE, {})
        planned = [PlannedVideo(i, f"{i}.mp4", "", 1, 1) for i in ids]
        write_planned_videos(f"results/plan/{number:05d}.tsv", planned)
    return tmp_path / "results"


@pytest.fixture
def verify(capsys):
    """Run the command; its status and its lines."""

    def call(*flags: str, plan: bool = True) -> tuple[int, list[str]]:
        status = 0
        try:
            plans = ["--plan", "results/plan"] if plan else []
            main(["--shards", "results/shards", *plans, *flags])
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().out.splitlines()

    return call


def tar_of(results: Path) -> Path:
    return results / "shards/00001.tar"


def rewrite_index(tar: Path, change=lambda rows: rows, **fields) -> None:
    """Write an index anew, with the tar's own size and sha256, so that only `change` is wrong."""
    index = read_index(tar.with_suffix(".parquet"))
    index = dataclasses.replace(index, **fields)
    metadata = {
        "recipe": index.recipe.to_dict(),
        "provenance": index.provenance,
        "tar_bytes": tar.stat().st_size,
        "tar_sha256": sha256_of_file(tar),
    }
    rows = [dataclasses.asdict(row) for row in change(index.rows)]
    write_table(tar.with_suffix(".parquet"), SCHEMA, rows, version=VERSION, metadata=metadata)


def change_first(**changes):
    return lambda rows: [dataclasses.replace(rows[0], **changes), *rows[1:]]


def test_good_shards_have_no_fault(results, verify):
    for flags in ([], ["--fast"]):
        for plan in (True, False):
            assert verify(*flags, plan=plan) == (0, ["no fault"])


def test_an_empty_shard_is_no_fault(results, verify):
    write_shard(
        "results/shards/00003.tar", "results/shards/00003.parquet", [failed("a")], RECIPE, {}
    )
    assert verify(plan=False) == (0, ["no fault"])


def flip_features(tar: Path) -> None:
    data = bytearray(tar.read_bytes())
    data[read_index(tar.with_suffix(".parquet")).rows[1].offset + 3] ^= 1
    tar.write_bytes(data)


def cut_on_a_border(tar: Path) -> None:
    with tarfile.open(tar) as file:
        last = file.getmembers()[-1]
    tar.write_bytes(tar.read_bytes()[: last.offset])
    rewrite_index(tar)


def add_member(name: str, data: bytes = b"x"):
    def add(tar: Path) -> None:
        with tarfile.open(tar, "a") as file:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
        rewrite_index(tar)

    return add


def put_nan(tar: Path) -> None:
    """With every checksum right, as a writer would have it that does not look."""
    row = read_index(tar.with_suffix(".parquet")).rows[0]
    data = bytearray(tar.read_bytes())
    data[row.offset : row.offset + 2] = np.float16(np.nan).tobytes()
    tar.write_bytes(data)
    rewrite_index(tar, change_first(crc32=zlib.crc32(data[row.offset :][: row.length])))


def other_json(tar: Path) -> None:
    data = tar.read_bytes()
    assert data.count(b'"video_id": "-dash"') == 1
    tar.write_bytes(data.replace(b'"video_id": "-dash"', b'"video_id": "-mash"'))
    rewrite_index(tar)


def other_type(tar: Path) -> None:
    tar.write_bytes(tar.read_bytes().replace(b"'<f2'", b"'<i2'", 1))
    rewrite_index(tar)


def no_npy(tar: Path) -> None:
    tar.write_bytes(tar.read_bytes().replace(b"\x93NUMPY", b"\x93NUMPI", 1))
    rewrite_index(tar)


DAMAGE = {
    "flipped bit": (flip_features, ["its sha256 is not", "of 'ünï' have another crc32"]),
    "cut": (lambda tar: tar.write_bytes(tar.read_bytes()[:3000]), ["3000 bytes, its index says"]),
    "cut on a border": (cut_on_a_border, ["two blocks of zeros", "it lacks '%2541.json'"]),
    "zeros cut off": (
        lambda tar: (tar.write_bytes(tar.read_bytes().rstrip(b"\0")), rewrite_index(tar)),
        ["two blocks of zeros at its end are missing"],
    ),
    "bytes appended": (
        lambda tar: (tar.write_bytes(tar.read_bytes() + b"more"), rewrite_index(tar)),
        ["something stands behind its last member"],
    ),
    "foreign member": (add_member("readme.txt"), ["holds 'readme.txt', which is foreign"]),
    "foreign key": (add_member("other.json"), ["holds 'other.json', which is foreign"]),
    "member twice": (add_member("-dash.json"), ["holds '-dash.json', which is", "there twice"]),
    "not finite": (put_nan, ["features of '-dash' hold NaN"]),
    "other description": (other_json, ["'-dash.json' does not describe '-dash'"]),
    "other type": (other_type, ["are int16 (4, 6), expected float16 (4, 6)"]),
    "no array": (no_npy, ["features of '-dash' are no .npy"]),
    "no tar": (lambda tar: tar.write_bytes(b"<html>"), ["6 bytes,", "it is no whole tar"]),
    "tar missing": (Path.unlink, ["the tar is missing"]),
    "index missing": (lambda tar: tar.with_suffix(".parquet").unlink(), ["no good index"]),
    "index cut": (lambda tar: tar.with_suffix(".parquet").write_bytes(b"PAR1"), ["no good index"]),
    "unescaped key": (
        lambda tar: rewrite_index(tar, change_first(video_id="da.sh")),
        ["its index gives 'da.sh' the key '-dash'"],
    ),
    "listed twice": (
        lambda tar: rewrite_index(tar, lambda rows: [*rows, rows[0]]),
        ["its index lists '-dash' 2 times"],
    ),
    "other place": (
        lambda tar: rewrite_index(tar, change_first(offset=99)),
        ["features of '-dash' lie at"],
    ),
    "other count": (
        lambda tar: rewrite_index(tar, change_first(num_frames=99)),
        ["gives '-dash' 48 bytes for 4 × 6"],
    ),
    "unknown status": (
        lambda tar: rewrite_index(tar, lambda rows: [*rows, dataclasses.replace(
            rows[0], video_id="x", key="x", status="done", offset=0, length=0, num_vectors=0)]),
        ["'x' the unknown status 'done'"],
    ),
    "not in the tar": (
        lambda tar: rewrite_index(
            tar, lambda rows: [*rows, dataclasses.replace(rows[0], video_id="x", key="x")]
        ),
        ["it lacks 'x.features.npy' and 1 more"],
    ),
    "other recipe": (
        lambda tar: rewrite_index(tar, recipe=dataclasses.replace(RECIPE, feature_version=2)),
        ["its recipe is not that of most shards: feature_version (2, not 1)"],
    ),
}  # fmt: skip
NEEDS_READING = {"flipped bit", "not finite", "other description"}


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_fault_is_named_with_its_remedy(results, verify, kind):
    damage, expected = DAMAGE[kind]
    damage(tar_of(results))
    status, lines = verify(plan=False)
    assert status == 1
    for line in lines:
        assert line.startswith("results/shards/00001.tar: ")
        assert line.endswith("; run snakemake --cores N --forcerun results/shards/00001.tar")
    for fault in expected:
        assert sum(fault in line for line in lines) == 1, lines
    quick, found = verify("--fast", plan=False)
    assert quick == (0 if kind in NEEDS_READING else 1), found


def test_faults_of_several_shards_are_all_named(results, verify):
    for name in ("00000", "00002"):
        flip_features(results / f"shards/{name}.tar")
    lines = verify()[1]
    assert [line[:24] for line in lines] == [f"results/shards/0000{n}.tar" for n in (0, 0, 2, 2)]


def test_the_plan_says_which_shards_and_videos_there_should_be(results, verify):
    (results / "shards/00009.tar").write_bytes(b"of an older plan")
    assert verify()[0] == 0
    (results / "shards/00009.tar").unlink()
    planned = [PlannedVideo(i, f"{i}.mp4", "", 1, 1) for i in [*SHARDS[1][:-1], "new"]]
    write_planned_videos(results / "plan/00001.tsv", planned)
    write_planned_videos(results / "plan/00003.tsv", planned)
    status, lines = verify()
    assert status == 1
    assert len(lines) == 2
    assert (
        "00001.tar: its index and results/plan/00001.tsv differ in their videos, first" in lines[0]
    )
    assert "00003.tar: no good index" in lines[1]


def test_another_order_than_the_plans_is_a_fault(results, verify):
    planned = [PlannedVideo(i, f"{i}.mp4", "", 1, 1) for i in reversed(SHARDS[1])]
    write_planned_videos(results / "plan/00001.tsv", planned)
    assert "first in 'the order'" in verify()[1][0]


def test_the_command_ends_with_status_1_and_no_traceback(results, tmp_path):
    command = [sys.executable, "-m", "pipeline.tools.verify", "--shards"]
    flip_features(tar_of(results))

    def run(folder: Path) -> subprocess.CompletedProcess:
        words = [*command, str(folder)]
        return subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)

    done = run(results / "shards")
    assert done.returncode == 1
    assert "crc32" in done.stdout
    nowhere = run(tmp_path / "none")
    assert nowhere.returncode == 1
    assert "no shard in" in nowhere.stderr
    assert "Traceback" not in done.stderr + nowhere.stderr


def test_a_size_that_a_header_made_up_takes_no_memory(results, verify):
    """The last member claims a terabyte; Python makes room before it reads."""
    path = results / "shards/00002.tar"
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    last.size = 10**12
    with open(path, "r+b") as file:
        file.seek(last.offset)
        file.write(last.tobuf(tarfile.GNU_FORMAT))
    with bounded_memory():
        status, lines = verify()
    assert status == 1
    assert any("00002.tar: its sha256 is not" in line for line in lines)
    assert any(f"{last.name!r} does not describe" in line for line in lines)
