"""Features of other tools come into shards and out again, and what does not fit is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.formats.files import sha256_of_file
from pipeline.formats.recipe import PRESETS
from pipeline.formats.shard import read_index
from pipeline.tools.convert import main
from pipeline.tools.verify import verify
from tests.small_shards import SETTINGS, accepted, encode
from tests.videos import steady, write_video

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ["--encoder", "s3d", "--weights", "ab", "--vectors", "mixed_5c", "--feature-dim", "6"]
TIMES = ["--frame-rate", "16", "--frames", "16", "--stride-seconds", "1"]


def array(seed: int, length: int = 5, dtype=np.float16) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(length, 6)).astype(dtype)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "features").mkdir()
    return tmp_path


def table(*ids: str, path: str = "videos/{}.mp4") -> None:
    rows = [f'"{video_id}",{path.format(video_id)}\n' for video_id in ids]
    Path("videos.csv").write_text("video_id,path\n" + "".join(rows), encoding="utf-8")


def bring_in(*more: str) -> None:
    words = ["--features", "features", "--videos", "videos.csv", "--videos-per-shard", "2"]
    main(["import", *words, "--output", "results/shards", *RECIPE, *TIMES, *more])


def take_out() -> dict[str, np.ndarray]:
    main(["export", "--shards", "results/shards", "--output", "out"])
    return {path.name: np.load(path, allow_pickle=False) for path in Path("out").iterdir()}


def rows() -> dict:
    paths = sorted(Path("results/shards").glob("*.parquet"))
    return {row.video_id: row for path in paths for row in read_index(path).rows}


def test_every_name_and_form_comes_in_and_goes_out_again(folder):
    np.save("features/plain.npy", array(0))
    np.save("features/film.mp4.npy", array(1, 1))
    np.save("features/clip.webm.npy", array(2, 9))
    np.savez("features/pack.npz", features=array(3), other=np.zeros(3))
    np.savez("features/deep.mp4.npz", features=array(4))
    table("plain", "film", "clip", "pack", "deep")
    bring_in()
    assert sorted(p.name for p in Path("results/shards").glob("*.tar")) == [
        "00000.tar", "00001.tar", "00002.tar",
    ]  # fmt: skip
    assert list(verify(Path("results/shards"), None, fast=False)) == []
    found = take_out()
    for seed, (name, length) in enumerate(
        {"plain": 5, "film": 1, "clip": 9, "pack": 5, "deep": 5}.items()
    ):
        np.testing.assert_array_equal(found[f"{name}.npy"], array(seed, length))
    assert len(found) == 5


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f2"])
def test_other_floats_become_float16(folder, dtype):
    np.save("features/a.npy", np.asfortranarray(array(0, dtype=dtype)))
    table("a")
    bring_in()
    np.testing.assert_array_equal(take_out()["a.npy"], array(0, dtype=dtype).astype(np.float16))


def test_export_and_import_again_give_the_same_bytes(folder):
    ids = ["plain", "a.1", "x/y z", "-dash", "ünï"]
    for seed, name in enumerate(["plain", "a.1", "x%2Fy%20z", "-dash", "%C3%BCn%C3%AF"]):
        np.save(f"features/{name}.npy", array(seed))
    table(*ids)
    bring_in()
    digests = [sha256_of_file(path) for path in sorted(Path("results/shards").glob("0*"))]
    assert {row.status for row in rows().values()} == {"encoded"}
    take_out()
    Path("features").rename("old")
    Path("out").rename("features")
    Path("results").rename("older")
    bring_in()
    assert digests == [sha256_of_file(p) for p in sorted(Path("results/shards").glob("0*"))]


@pytest.mark.parametrize("tail", ["repeat", "zero", "drop"])
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_length_of_a_video_follows_from_its_vectors(folder, tail, preset):
    grid = PRESETS[preset]
    for length in (1, 2, 7):
        np.save(f"features/{length}.npy", array(length, length))
    table("1", "2", "7")
    times = ["--frame-rate", grid.frame_rate, "--frames", grid.frames, "--tail", tail]
    bring_in(*map(str, times), "--stride-seconds", str(grid.stride_seconds))
    for name, row in rows().items():
        assert row.num_vectors == int(name) == grid.num_vectors(row.num_frames)
        assert row.decoded_seconds == row.num_frames / grid.frame_rate
        assert grid.valid_frames(row.num_frames)[-1] == grid.frames


def test_what_does_not_fit_is_a_row_and_a_line(folder, capsys):
    bad = {
        "flat": np.zeros(6, np.float32),
        "deep": np.zeros((1, 5, 6), np.float32),
        "wide": np.zeros((5, 7), np.float32),
        "none": np.zeros((0, 6), np.float32),
        "whole": np.zeros((5, 6), np.int64),
        "nan": np.full((5, 6), np.nan, np.float32),
        "huge": np.full((5, 6), 1e6, np.float32),
    }
    for name, value in bad.items():
        np.save(f"features/{name}.npy", value)
    np.save("features/object.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.savez("features/nameless.npz", x=array(0))
    np.savez("features/pickled.npz", features=np.array([{}], dtype=object))
    Path("features/page.npy").write_text("<html>")
    Path("features/void.npy").touch()
    np.save("features/cut.npy", array(0, 50))
    Path("features/cut.npy").write_bytes(Path("features/cut.npy").read_bytes()[:300])
    np.save("features/double.mp4.npy", array(0))
    np.save("features/double.webm.npy", array(1))
    np.save("features/good.npy", array(0))
    refused = [*bad, "object", "nameless", "pickled", "page", "void", "cut", "double"]
    table(*refused, "good", "absent")
    bring_in()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"refused {name}" for name in refused]
    said = dict(line.removeprefix("refused ").split(": ", 1) for line in lines)
    assert said["wide"] == "wide.npy has the shape (5, 7), needed: (T, 6) with T >= 1"
    assert "int64" in said["whole"]
    assert "NaN" in said["nan"]
    assert "more than float16" in said["huge"]
    assert "no member `features` among x" in said["nameless"]
    assert said["double"] == "double.mp4.npy and double.webm.npy are both there: keep one"
    found = rows()
    assert [name for name, row in found.items() if row.encoded] == ["good"]
    assert (found["absent"].status, found["absent"].reason) == ("failed", "missing")
    assert {found[name].reason for name in refused} == {"unreadable"}
    assert list(verify(Path("results/shards"), None, fast=False)) == []


def test_the_index_knows_the_video_file_and_the_recipe(folder):
    video = folder / "a.mp4"
    video.write_bytes(b"1234567")
    np.save("features/a.npy", array(0))
    np.save("features/b.npy", array(0))
    table("a", path="{}.mp4")
    with open("videos.csv", "a") as file:
        file.write("b,\n")
    (folder / "weights.pth").write_bytes(b"w")
    bring_in("--weights", "weights.pth", "--frame-size", "112", "--feature-version", "3")
    found = rows()
    assert (found["a"].size_bytes, found["a"].mtime_ns) == (7, video.stat().st_mtime_ns)
    assert (found["b"].status, found["b"].reason) == ("rejected", "removed")
    recipe = read_index("results/shards/00000.parquet").recipe
    assert recipe.weights_sha256 == sha256_of_file("weights.pth")
    assert (recipe.encoder, recipe.frame_size, recipe.feature_version) == ("s3d", 112, 3)
    assert Path("results/shards/.previous/00000.tar").samefile("results/shards/00000.tar")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--videos-per-shard", "0"], "--videos-per-shard is 0"),
        (["--vectors", "own", "--feature-dim", "0"], "--feature-dim is needed"),
        (["--stride-seconds", "0.3"], "must be a whole number"),
        (["--videos", "none.csv"], "none.csv does not exist"),
        (["--features", "elsewhere"], "elsewhere has no features of any video"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(folder, more, message):
    np.save("features/a.npy", array(0))
    table("a")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        bring_in(*more)
    assert not Path("results").exists()


def test_encoding_re_uses_what_was_imported(folder):
    video = write_video(folder / "a.mp4", steady(50))
    np.save("features/a.npy", array(0, 2)[:, :3])
    table("a", path="{}.mp4")
    grid = SETTINGS.grid
    times = ["--frame-rate", grid.frame_rate, "--frames", grid.frames]
    times += ["--stride-seconds", grid.stride_seconds, "--frame-size", SETTINGS.frame_size]
    bring_in(*map(str, times), "--feature-dim", "3")
    rows = [accepted(video, "a", 2.0)]
    assert encode(rows, folder / "results/shards")[0] == 0
    np.testing.assert_array_equal(take_out()["a.npy"], array(0, 2)[:, :3])


def test_a_shard_that_is_there_is_not_overwritten(folder):
    np.save("features/a.npy", array(0))
    table("a")
    bring_in()
    with pytest.raises(ValueError, match=r"results/shards/00000\.tar exists"):
        bring_in()


@pytest.mark.parametrize("video_id", ["я" * 54, "漢字" * 30])
def test_an_id_too_long_when_encoded_keeps_its_own_name(folder, video_id):
    np.save(f"features/{video_id}.npy", array(0))
    table(video_id)
    bring_in()
    assert list(take_out()) == [f"{video_id}.npy"]


def test_a_video_in_two_shards_is_refused(folder):
    np.save("features/a.npy", array(0))
    table("a")
    bring_in()
    for suffix in (".tar", ".parquet"):
        source = Path("results/shards/00000").with_suffix(suffix)
        source.with_name(f"00007{suffix}").write_bytes(source.read_bytes())
    with pytest.raises(ValueError, match="'a' is in shard 00000 and in 00007: one of them is of"):
        take_out()


def test_a_damaged_shard_is_not_exported(folder):
    np.save("features/a.npy", array(0))
    table("a")
    bring_in()
    tar = Path("results/shards/00000.tar")
    data = bytearray(tar.read_bytes())
    data[rows()["a"].offset] ^= 1
    tar.write_bytes(data)
    with pytest.raises(ValueError, match="features of 'a' are damaged"):
        take_out()
    with pytest.raises(FileNotFoundError, match="no shard in features"):
        main(["export", "--shards", "features", "--output", "out"])


def test_the_command_fails_in_one_line(folder):
    words = ["export", "--shards", "features", "--output", "out"]
    command = [sys.executable, "-m", "pipeline.tools.convert", *words]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
