"""NVDEC without a GPU: frames of its kind made of libav's, and every way back to the CPU."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch

from pipeline import decoding, nv12, video_stream
from pipeline.decode_pool import decode_all
from pipeline.decoding import Event, Failed, Finished, Job, Started, Window, decode_video
from pipeline.encode_progress import GpuTally
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.formats.shard import read_index
from pipeline.nvdec import GpuPainter, UnsuitedError, hwaccel, nvdec_fault
from pipeline.pixels import Geometry
from tests.gpu_frames import OnGpu
from tests.marked_videos import set_clean_aperture
from tests.videos import cut, rot, set_display_matrix, steady, write_video

SAMPLING = Sampling(frame_rate=8, frames=4, stride_seconds=0.5, tail="repeat")
GEOMETRY = Geometry(frame_size=32)
Change = Callable[[av.VideoFrame], object]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("videos") / "two.mp4", steady(50))


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that decodes as libav does; the test says how its frames differ from NVDEC's usual."""
    real_paint, real_matrix, real_maker = (
        GpuPainter.paint,
        video_stream.display_matrix,
        nv12.SquareMaker,
    )

    def install(change: Change = OnGpu) -> None:
        monkeypatch.setattr(GpuPainter, "paint", lambda self, f, m: real_paint(self, change(f), m))

    monkeypatch.setattr(video_stream, "hwaccel", lambda gpu: None)
    monkeypatch.setattr(
        video_stream, "display_matrix", lambda f: real_matrix(getattr(f, "frame", f))
    )
    monkeypatch.setattr(nv12, "SquareMaker", lambda geometry, device: real_maker(geometry, "cpu"))
    install()
    return install


def on(gpu: int | None, path) -> list[Event]:
    return list(decode_video(Job(0, str(path), 2.0), SAMPLING, GEOMETRY, gpu))


def pictures(events: list[Event]) -> np.ndarray:
    """The windows since the video last began."""
    last = max(k for k, event in enumerate(events) if isinstance(event, Started))
    return np.stack([event.pixels for event in events[last:] if isinstance(event, Window)])


def test_a_gpu_gives_the_windows_of_the_cpu_and_says_that_it_did(gpu, path):
    there, here = on(0, path), on(None, path)
    assert [type(event) for event in there] == [type(event) for event in here]
    difference = np.abs(pictures(there).astype(int) - pictures(here))
    assert difference.mean() < 0.05
    assert difference.max() <= 4
    assert there[-1] == here[-1]
    assert (there[-1].on_gpu, there[-1].gpu_fault) == (True, "")
    assert (here[-1].on_gpu, here[-1].gpu_fault) == (False, "")


def test_a_phone_s_portrait_stands_upright(gpu, path, tmp_path):
    turned = tmp_path / "turned.mp4"
    turned.write_bytes(path.read_bytes())
    set_display_matrix(turned, (0, 1, -1, 0))
    there, here = on(0, turned), on(None, turned)
    assert np.abs(pictures(there).astype(int) - pictures(here)).max() <= 4
    assert np.abs(pictures(there).astype(int) - pictures(on(0, path))).max() > 100


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sw_format": SimpleNamespace(name="p010le")}, "its pictures are p010le, not nv12"),
        ({"sw_format": SimpleNamespace(name="yuv444p")}, "its pictures are yuv444p, not nv12"),
        ({"width": 95}, "its size 95×64 is odd or tiny"),
        ({"colorspace": 8}, "its matrix of colours has number 8"),
        ({"width": 98}, "its pictures are cut at the left or above"),
    ],
)
def test_what_is_not_made_on_the_gpu_starts_anew_on_the_cpu(gpu, path, changes, fault):
    gpu(lambda frame: OnGpu(frame, **changes))
    there, here = on(0, path), on(None, path)
    assert [type(event) for event in there] == [Started, *map(type, here)]
    np.testing.assert_array_equal(pictures(there), pictures(here))
    assert (there[-1].on_gpu, there[-1].gpu_fault) == (False, fault)


def failing(after: int, error: Exception) -> Change:
    """Frames that are as they should be, until one is not."""
    seen = []

    def change(frame: av.VideoFrame) -> OnGpu:
        seen.append(frame)
        if len(seen) > after:
            raise error
        return OnGpu(frame)

    return change


def test_pictures_that_the_container_cuts_are_made_on_the_cpu(gpu, path, tmp_path):
    cropped = Path(shutil.copy(path, tmp_path / "cropped.mp4"))
    set_clean_aperture(cropped, 64, 64, -8, 0)
    events = on(0, cropped)
    assert events[-1].gpu_fault == "its container says to cut its pictures"
    np.testing.assert_array_equal(pictures(events), pictures(on(None, cropped)))


def test_a_kind_that_changes_on_the_way_costs_what_was_done(gpu, path):
    gpu(failing(9, UnsuitedError("its pictures are p010le, not nv12")))
    events, here = on(0, path), on(None, path)
    starts = [k for k, event in enumerate(events) if isinstance(event, Started)]
    assert len(starts) == 2
    assert starts[1] > 2, "windows came before"
    np.testing.assert_array_equal(pictures(events), pictures(here))


def test_memory_that_ends_on_the_gpu_is_no_fault_of_the_video(gpu, path, monkeypatch):
    def full(self, *planes):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate 2 GiB")

    monkeypatch.setattr(nv12._Steps, "square", full)
    events = on(0, path)
    assert isinstance(events[-1], Finished)
    assert events[-1].gpu_fault == "the GPU fails: CUDA out of memory. Tried"


def test_the_cpu_has_the_last_word_on_faults(gpu, path):
    gpu(failing(4, VideoFault(Reason.UNREADABLE, "libav: no surface")))
    events = on(0, path)
    assert events[-1].gpu_fault == "there it is unreadable: libav: no surface"
    assert isinstance(events[-1], Finished)
    failed = on(0, path.with_name("none.mp4"))
    assert [type(event) for event in failed] == [Started, Started, Failed]
    assert failed[-1].reason is Reason.MISSING


def test_the_cpu_has_the_last_word_on_damage(gpu, tmp_path):
    path = write_video(
        tmp_path / "rotten.mp4", steady(100), container_options={"movflags": "faststart"}
    )
    rot(path, bytes_changed=60, after=0.4)
    there, here = on(0, path), on(None, path)
    assert there[-1] == here[-1]
    assert here[-1].report.bad_packets > 0
    assert there[-1].gpu_fault == "some of its packets do not decode there"
    np.testing.assert_array_equal(pictures(there), pictures(here))


def test_the_cpu_has_the_last_word_on_what_is_missing(gpu, tmp_path):
    path = write_video(tmp_path / "cut.mkv", steady(100))
    cut(path, 0.6)
    there, here = on(0, path), on(None, path)
    assert there[-1] == here[-1]
    assert here[-1].report.bad_packets == 0
    assert there[-1].gpu_fault == "a part of its length does not decode there"


def test_a_stream_that_nvdec_does_not_know_is_painted_by_the_cpu(gpu, path):
    gpu(lambda frame: frame)
    there, here = on(0, path), on(None, path)
    assert [type(event) for event in there] == [type(event) for event in here]
    np.testing.assert_array_equal(pictures(there), pictures(here))
    assert (there[-1].on_gpu, there[-1].gpu_fault) == (False, "NVDEC does not know it")


def test_a_video_that_ended_its_process_is_not_given_to_the_gpu_again(gpu, path, monkeypatch):
    monkeypatch.setattr(decoding, "_on_gpu", None)
    job = Job(0, str(path), 2.0, on_cpu=True)
    *_, end = decode_video(job, SAMPLING, GEOMETRY, 0)
    assert end.gpu_fault == "it ended the decoding process"
    *_, end = decode_video(job, SAMPLING, GEOMETRY, None)
    assert end.gpu_fault == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_where_no_gpu_is_one_line_says_so_and_processes_fall_back(path):
    # In a process of its own: a pretended GPU leaves torch another opinion of what it lacks.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        fault = pool.apply(nvdec_fault, (0,))
    assert fault.startswith("torch: ")
    assert "\n" not in fault
    job = Job(0, str(path), 2.0)
    events = list(decode_all([job], SAMPLING, GEOMETRY, workers=1, waiting_windows=2, gpu=0))
    np.testing.assert_array_equal(pictures(events), pictures(on(None, path)))
    assert events[-1].gpu_fault == fault


def test_libav_is_given_torch_s_context_and_keeps_frames_on_the_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    found = hwaccel(1)
    assert asked == ["cuda:1", 1]
    assert (found.is_hw_owned, found.device_id, found.allow_software_fallback) == (True, 1, True)
    # libav refuses the primary context once torch has opened it, and both at once.
    assert found.options == {"primary_ctx": "0", "current_ctx": "1"}


def test_the_log_names_the_first_fault_and_counts_the_others(caplog):
    tally, end = GpuTally(), Finished(0, None, 1, 1)
    for fault in ("", "odd", "odd", "p010le"):
        tally.note("v.mp4", replace(end, on_gpu=not fault, gpu_fault=fault))
    assert caplog.messages == [
        "v.mp4: NVDEC is not used (odd): the CPU decodes it, and others like it"
    ]
    assert tally.text() == "NVDEC decoded 1 videos, the CPU 3; 2: odd; 1: p010le"


def test_the_index_says_which_decoder_it_was_and_re_use_keeps_that(gpu, path, tmp_path, caplog):
    from pipeline import encode_shard
    from pipeline.shard_encoder import EncodeRun
    from tests.small_shards import SETTINGS, accepted, outputs_in
    from tests.stand_ins import Means

    deep = write_video(tmp_path / "deep.mp4", steady(50), pixels="yuv420p10le")
    gpu(lambda f: OnGpu(f) if f.format.name == "yuv420p" else ten_bits(f))
    caplog.set_level("INFO")
    rows = [accepted(path, "plain", 2.0), accepted(deep, "deep", 2.0)]
    outputs = outputs_in(tmp_path / "out")

    def encode(found: int | None) -> tuple[dict[str, str], str]:
        encode_shard.decoding_gpu, before = lambda *_: found, encode_shard.decoding_gpu
        try:
            encode_shard.encode_rows(
                rows, SETTINGS, Means(), outputs, EncodeRun(batch=2, workers=0, decoder="nvdec")
            )
        finally:
            encode_shard.decoding_gpu = before
        index = read_index(outputs[1])
        return {row.video_id: row.decoder for row in index.rows}, index.provenance["decoder"]

    decoders, provenance = encode(0)
    assert decoders == {"plain": "nvdec", "deep": "cpu"}
    assert provenance.endswith(", NVDEC and torch")
    assert "deep.mp4: NVDEC is not used (its pictures are p010le, not nv12)" in caplog.text
    assert "NVDEC decoded 1 videos, the CPU 1; 1: its pictures are p010le" in caplog.text
    decoders, provenance = encode(None)
    assert decoders == {"plain": "nvdec", "deep": "cpu"}
    assert "NVDEC" not in provenance


def ten_bits(frame: av.VideoFrame) -> SimpleNamespace:
    """As NVDEC gives a video of ten bits."""
    return SimpleNamespace(
        format=SimpleNamespace(name="cuda"),
        sw_format=SimpleNamespace(name="p010le"),
        width=frame.width,
        height=frame.height,
    )
