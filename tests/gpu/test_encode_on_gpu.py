"""The encode stage on a GPU: the CPU's features, batches that overlap, memory that ends."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from pipeline.encoders.batches import WindowBatch
from pipeline.encoders.interface import load_encoder
from pipeline.encoders.machine import choose_device, machine_state
from pipeline.formats.recipe import PRESETS
from pipeline.video import Geometry, VideoReader, nvdec_fault
from tests.test_encoder_interface import SETTINGS

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (11, 8, 64, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
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
    batch = torch.from_numpy(windows[:4])
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


def test_nvdec_gives_the_pictures_of_the_cpu(plain_video, device):
    gpu = torch.device(device).index or 0
    if fault := nvdec_fault(gpu):
        pytest.skip(fault)
    pictures = [
        np.stack(
            list(
                VideoReader(
                    plain_video,
                    sampling=PRESETS["half-hertz"],
                    geometry=Geometry(frame_size=64),
                    gpu=number,
                ).windows()
            )
        )
        for number in (None, gpu)
    ]
    assert pictures[0].shape == pictures[1].shape
    assert int(np.abs(pictures[0].astype(int) - pictures[1].astype(int)).max()) <= 2
