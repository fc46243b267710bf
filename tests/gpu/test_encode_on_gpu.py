"""The encode stage on a GPU: the CPU's features, batches that overlap, memory that ends."""

from __future__ import annotations

import dataclasses

import av
import numpy as np
import pytest
import torch

from pipeline.decode_pool import decode_all
from pipeline.decoding import Finished, Job, Window, decode_video
from pipeline.encoders.batches import WindowBatch
from pipeline.encoders.interface import load_encoder
from pipeline.encoders.machine import choose_device, machine_state
from pipeline.formats.recipe import PRESETS
from pipeline.nv12 import Look, SquareMaker, planes_of
from pipeline.nvdec import nvdec_fault
from pipeline.pixels import Geometry
from pipeline.video import VideoReader
from pipeline.video_stream import best_stream, open_video
from tests.examples import encode_settings
from tests.gpu_frames import nv12_of
from tests.videos import quadrants, set_display_matrix, steady, write_video

pytestmark = pytest.mark.gpu

SETTINGS = encode_settings()


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (11, 8, 64, 64, 3), dtype=np.uint8)


@pytest.fixture
def device() -> str:
    return choose_device("cuda")


def encoder_on(device: str, **changes):
    return load_encoder(dataclasses.replace(SETTINGS, frame_size=64, **changes), device)


def served(encoder, windows: np.ndarray, size: int) -> np.ndarray:
    batch, taker = WindowBatch(encoder, size), []
    for window in windows:
        batch.add(window, taker)
    batch.run()
    return np.stack(taker)


@pytest.mark.parametrize(("precision", "cosine"), [("float32", 0.999999), ("bfloat16", 0.999)])
@pytest.mark.parametrize("with_cells", [True, False])
def test_features_are_those_of_the_cpu(windows, device, precision, cosine, with_cells):
    there = encoder_on(device, precision=precision, space_to_depth=with_cells)
    here = encoder_on("cpu", space_to_depth=with_cells)
    batch = torch.from_numpy(windows[:2])
    found, expected = there(batch).cpu(), here(batch)
    assert float(torch.cosine_similarity(found, expected).min()) > cosine


def test_overlapping_batches_give_every_taker_its_own_rows_and_the_same_bytes(windows, device):
    encoder = encoder_on(device)
    first = served(encoder, windows, 4)
    assert np.array_equal(served(encoder, windows, 4), first)
    alone = np.stack([encoder(torch.from_numpy(w[None])).cpu().numpy()[0] for w in windows])
    np.testing.assert_allclose(first, alone, rtol=5e-3, atol=5e-3)


def test_out_of_memory_on_the_gpu_halves_the_batch(windows, device):
    class Cramped:
        def __init__(self, encoder):
            self.encoder, self.device = encoder, encoder.device

        def __call__(self, batch):
            if len(batch) > 3:
                torch.empty(2**50, dtype=torch.uint8, device=self.device)
            return self.encoder(batch)

    encoder = encoder_on(device)
    found = served(Cramped(encoder), windows, 8)
    np.testing.assert_allclose(found, served(encoder, windows, 2), rtol=5e-3, atol=5e-3)


def test_the_state_names_the_peak_memory(device):
    assert "peak GPU memory" in machine_state(torch.device(device))


@pytest.mark.parametrize("geometry", [Geometry(64), Geometry(64, (72, 97)), Geometry(96)])
def test_squares_made_of_planes_on_the_gpu_are_those_of_the_cpu(plain_video, device, geometry):
    with av.open(str(plain_video)) as container:
        frame = next(container.decode(video=0))
    planes = [torch.from_numpy(plane) for plane in nv12_of(frame)]
    look = Look(frame.height, frame.width, int(frame.colorspace), False, None)
    here = SquareMaker(geometry, "cpu").square(*planes, look).astype(int)
    there = SquareMaker(geometry, device).square(*(plane.to(device) for plane in planes), look)
    assert np.abs(here - there).max() <= 1


@pytest.fixture
def gpu(real_gpu, device) -> int:
    """The number of a GPU that decodes."""
    number = torch.device(device).index or 0
    if fault := nvdec_fault(number):
        pytest.skip(fault)
    return number


def test_nvdec_leaves_its_frames_on_the_gpu(plain_video, gpu):
    with open_video(plain_video, gpu) as container:
        frame = next(container.decode(best_stream(container)))
        assert (frame.format.name, frame.sw_format.name) == ("cuda", "nv12")
        planes = planes_of(frame.planes, torch.device(f"cuda:{gpu}"))
        assert [str(plane.device) for plane in planes] == [f"cuda:{gpu}"] * 2
        assert tuple(planes[1].shape) == (frame.height // 2, frame.width // 2, 2)


@pytest.mark.parametrize("geometry", [Geometry(64), Geometry(64, (72, 97)), Geometry(64, 80)])
def test_nvdec_gives_the_pictures_of_the_cpu(plain_video, gpu, geometry):
    readers = [
        VideoReader(plain_video, sampling=PRESETS["half-hertz"], geometry=geometry, gpu=number)
        for number in (None, gpu)
    ]
    here, there = (np.stack(list(reader.windows())).astype(int) for reader in readers)
    assert here.shape == there.shape
    assert readers[1].on_gpu
    difference = np.abs(here - there)
    assert difference.mean() < 0.1
    assert int(difference.max()) <= 4


@pytest.mark.parametrize("matrix", [(0, 1, -1, 0), (-1, 0, 0, -1)])
def test_nvdec_turns_a_phone_s_video(tmp_path, gpu, matrix):
    path = write_video(tmp_path / "phone.mp4", steady(50), draw=lambda _: quadrants(320, 240))
    set_display_matrix(path, matrix)
    here, there = (
        np.stack([event.pixels for event in decoded_by(path, number) if isinstance(event, Window)])
        for number in (None, gpu)
    )
    assert np.abs(here.astype(int) - there).max() <= 4


def test_ten_bits_are_decoded_by_the_cpu(tmp_path, gpu):
    path = write_video(tmp_path / "deep.mp4", steady(50), pixels="yuv420p10le")
    end = decoded_by(path, gpu)[-1]
    assert isinstance(end, Finished)
    assert not end.on_gpu
    assert end.gpu_fault


def decoded_by(path, number):
    """The events of a video, by the way of the encode stage."""
    return list(decode_video(Job(0, str(path), 2.0), PRESETS["half-hertz"], Geometry(64), number))


def test_decoding_processes_use_the_gpu(plain_video, gpu):
    """Each with a CUDA context of its own, beside that of this process."""
    jobs = [Job(number, str(plain_video), 4.0) for number in range(3)]
    stream = decode_all(
        jobs, PRESETS["half-hertz"], Geometry(64), workers=2, waiting_windows=4, gpu=gpu
    )
    ends = [event for event in stream if isinstance(event, Finished)]
    assert [end.gpu_fault for end in ends] == ["", "", ""]
    assert all(end.on_gpu for end in ends)
