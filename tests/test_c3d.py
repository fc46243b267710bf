"""C3D: its fc6 as the paper has it, from weights of the published names."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional

from pipeline.encoders.interface import load_encoder
from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings
from tests.examples import encode_settings

SETTINGS = encode_settings()


def c3d_settings(**changes) -> EncodeSettings:
    sampling = {"frame_rate": 16, "frames": 16, "stride_seconds": 1, "tail": "repeat"}
    wanted = {"encoder": "c3d", "output": "fc6", "frame_size": 112, "sampling": sampling}
    return dataclasses.replace(SETTINGS, **(wanted | changes))


PUBLISHED = {
    "conv1": (64, 3, 3, 3, 3),
    "conv2": (128, 64, 3, 3, 3),
    "conv3a": (256, 128, 3, 3, 3),
    "conv3b": (256, 256, 3, 3, 3),
    "conv4a": (512, 256, 3, 3, 3),
    "conv4b": (512, 512, 3, 3, 3),
    "conv5a": (512, 512, 3, 3, 3),
    "conv5b": (512, 512, 3, 3, 3),
    "fc6": (4096, 8192),
}
"""The names and shapes of c3d.pickle (github.com/DavideA/c3d-pytorch) up to fc6."""


def published_state() -> dict[str, torch.Tensor]:
    """A state dict of c3d.pickle's names and shapes; those behind fc6 are left small."""
    generator = torch.Generator().manual_seed(3)
    state = {}
    for name, shape in PUBLISHED.items():
        scale = (2 / torch.Size(shape[1:]).numel()) ** 0.5 / (128 if name == "conv1" else 1)
        state[f"{name}.weight"] = torch.randn(shape, generator=generator) * scale
        state[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.1
    return state | {f"fc{k}.{kind}": torch.zeros(1) for k in (7, 8) for kind in ("weight", "bias")}


def by_the_paper(windows_BTHWC: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """fc6 of C3D, written out: blue first, 0 to 255, the mean of Sports-1M taken off."""
    x = windows_BTHWC.float().flip(-1) - torch.tensor([90.25, 97.66, 101.41])
    x = x.permute(0, 4, 1, 2, 3)

    def conv(name):
        return functional.conv3d(
            x, state[f"{name}.weight"], state[f"{name}.bias"], padding=1
        ).relu()

    x = functional.max_pool3d(conv("conv1"), (1, 2, 2))
    x = functional.max_pool3d(conv("conv2"), 2)
    for layer in ("conv3", "conv4", "conv5"):
        x = conv(f"{layer}a")
        x = conv(f"{layer}b")
        # Caffe rounds sizes up, so that seven places become four: one is missing behind the last.
        missing = x.shape[-1] % 2
        x = functional.pad(x, (0, missing, 0, missing), value=-torch.inf)
        x = functional.max_pool3d(x, 2)
    return functional.linear(x.flatten(1), state["fc6.weight"], state["fc6.bias"]).relu()


def test_c3d_loads_the_published_weights_and_gives_fc6_as_the_paper_has_it(tmp_path):
    state = published_state()
    # As old as the published file: no zip archive.
    torch.save(state, tmp_path / "c3d.pickle", _use_new_zipfile_serialization=False)
    encoder = load_encoder(c3d_settings(weights=str(tmp_path / "c3d.pickle")), "cpu")
    generator = torch.Generator().manual_seed(4)
    windows = torch.randint(0, 256, (1, 16, 112, 112, 3), dtype=torch.uint8, generator=generator)
    found, expected = encoder(windows), by_the_paper(windows, state)
    assert tuple(found.shape) == (1, encoder.feature_dim) == (1, 4096)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert 0.2 < float((expected > 0).float().mean()) < 0.8
    assert encoder.geometry == Geometry(frame_size=112, resize=(128, 171))


def test_c3d_names_what_a_file_of_caffe_s_own_names_lacks(tmp_path):
    torch.save({"conv1a.weight": torch.zeros(1)}, tmp_path / "c3d.pth")
    message = r"does not fit c3d: missing conv1\.weight, conv1\.bias, .* unexpected conv1a\.weight"
    with pytest.raises(ValueError, match=message):
        load_encoder(c3d_settings(weights=str(tmp_path / "c3d.pth")), "cpu")


def test_random_features_of_c3d_fit_float16_and_are_not_all_dead():
    encoder = load_encoder(c3d_settings(), "cpu")
    features = encoder(torch.randint(0, 256, (1, 16, 112, 112, 3), dtype=torch.uint8))
    assert 0.01 < float(features.std()) < 100


def test_c3d_has_no_other_output_and_no_other_frames():
    with pytest.raises(ValueError, match="output is 'mixed_5c', allowed: 'fc6'"):
        c3d_settings(output="mixed_5c")
    with pytest.raises(ValueError, match="frame_size is 224, but c3d takes 112"):
        load_encoder(c3d_settings(frame_size=224), "cpu")
