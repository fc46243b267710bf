"""Pictures into S3D, features out: close to the plain network, and to nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from pipeline.encoders.interface import load_encoder
from pipeline.encoders.s3d import S3D
from pipeline.encoders.s3d_folded import computes_bfloat16
from pipeline.encoders.s3d_weights import randomize
from tests.examples import encode_settings

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = encode_settings()
RED, BLUE = (230, 30, 30), (40, 70, 255)


def moving_square(colour: tuple[int, int, int], step: int, size: int = 32) -> np.ndarray:
    """A square that moves `step` pixels a frame: uint8 [8, size, size, 3]."""
    clip = np.full((8, size, size, 3), 40, np.uint8)
    for index, picture in enumerate(clip):
        left = 12 + step * (index - 4)
        picture[10:22, left : left + 12] = colour
    return clip


@pytest.fixture(scope="module")
def encoder():
    return load_encoder(SETTINGS, "cpu")


def test_features_are_float32_rows_and_the_geometry_is_a_centre_square(encoder):
    features = encoder(torch.zeros(2, 8, 32, 32, 3, dtype=torch.uint8))
    assert (features.dtype, tuple(features.shape)) == (torch.float32, (2, 1024))
    assert (encoder.feature_dim, encoder.name) == (1024, "s3d")
    assert (encoder.geometry.frame_size, encoder.geometry.resize) == (32, None)


def test_the_encoder_equals_the_plain_network_on_colours_from_0_to_1(encoder):
    network = S3D(space_to_depth=True).eval()
    randomize(network, 0)
    windows = torch.from_numpy(np.stack([moving_square(RED, 2)]))
    with torch.inference_mode():
        plain = network(windows.permute(0, 4, 1, 2, 3).float() / 255)["mixed_5c"]
    torch.testing.assert_close(encoder(windows), plain, rtol=1e-4, atol=1e-4)


def test_the_embedding_has_512_numbers():
    encoder = load_encoder(dataclasses.replace(SETTINGS, output="embedding"), "cpu")
    windows = torch.from_numpy(np.stack([moving_square(RED, 2)]))
    assert tuple(encoder(windows).shape) == (1, encoder.feature_dim) == (1, 512)


def test_random_features_have_about_unit_scale_on_noise_and_on_shapes(encoder):
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (4, 8, 32, 32, 3), dtype=np.uint8)
    shapes = np.stack(
        [
            moving_square(colour, step)
            for colour in ((230, 30, 30), (40, 70, 255))
            for step in (-2, 2)
        ]
    )
    for windows in (noise, shapes):
        features = encoder(torch.from_numpy(windows))
        assert 0.2 < float(features.std()) < 20
        assert float(features.std(dim=0).mean()) > 0.02


def test_random_features_tell_colours_and_motions_apart(encoder):
    clips = {
        "red right": moving_square(RED, 2),
        "red left": moving_square(RED, -2),
        "blue right": moving_square(BLUE, 2),
    }
    features = encoder(torch.from_numpy(np.stack(list(clips.values()))))
    distances = torch.cdist(features, features) / features.norm(dim=1)
    assert float((distances + torch.eye(3)).min()) > 0.05


def test_the_same_clip_played_backwards_is_another_clip(encoder):
    clip = moving_square(RED, 2)
    there, back = encoder(torch.from_numpy(np.stack([clip, clip[::-1]])))
    assert float((there - back).norm() / there.norm()) > 0.05


def test_features_are_the_same_bytes_at_any_place_of_a_batch_of_the_same_size(encoder):
    random = np.random.default_rng(1)
    windows = torch.from_numpy(random.integers(0, 256, (8, 8, 32, 32, 3), dtype=np.uint8))
    reference = encoder(windows)
    for seed in range(4):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(encoder(windows[order]), reference[order])
    alone = torch.zeros_like(windows)
    alone[3] = windows[0]
    assert torch.equal(encoder(alone)[3], reference[0])


@pytest.mark.skipif(not computes_bfloat16(), reason="this CPU does not compute in bfloat16")
def test_bfloat16_stays_close(encoder):
    rough = load_encoder(dataclasses.replace(SETTINGS, precision="bfloat16"), "cpu")
    windows = torch.from_numpy(np.stack([moving_square(RED, 2)]))
    exact, near = encoder(windows), rough(windows)
    assert near.dtype == torch.float32
    assert float(torch.cosine_similarity(exact, near)) > 0.999


def test_bfloat16_on_a_cpu_without_it_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("pipeline.encoders.s3d_encoder.computes_bfloat16", lambda: False)
    with pytest.raises(ValueError, match=r"precision is bfloat16, which this CPU .* set float32"):
        load_encoder(dataclasses.replace(SETTINGS, precision="bfloat16"), "cpu")
    assert load_encoder(SETTINGS, "cpu").dtype == torch.float32
