"""torchvision's video networks: cut before their last layer, and held to their presets."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch
from torch import nn

from pipeline.encoders.interface import load_encoder
from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings
from tests.examples import encode_settings

SETTINGS = encode_settings()
WINDOWS = torch.arange(2 * 8 * 32 * 32 * 3).reshape(2, 8, 32, 32, 3).remainder(251).byte()


def settings_for(name: str, **changes) -> EncodeSettings:
    """Those of `encode_settings`, for a network of that name."""
    return dataclasses.replace(SETTINGS, encoder=name, output="features", **changes)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(3, 6, 3)
        self.fc = nn.Linear(6, 400)

    def forward(self, x_BCTHW):
        return self.fc(self.stem(x_BCTHW).mean(dim=(2, 3, 4)))


class Positioned(Residual):
    """Has a number for each place of a picture, as the transformers do."""

    def __init__(self):
        super().__init__()
        self.pos_encoding = nn.Identity()


class Everywhere(Residual):
    """Classifies every place with a convolution, and takes the mean behind it."""

    def __init__(self):
        super().__init__()
        self.fc = None
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Conv3d(6, 400, 1))

    def forward(self, x_BCTHW):
        return self.classifier(self.stem(x_BCTHW)).mean(dim=(2, 3, 4))


NETWORKS = {"r3d_18": Residual, "mvit_v2_s": Positioned, "s3d": Everywhere}
PRESETS = {
    "r3d_18": (112, [128, 171], {"min_size": (1, 1), "min_temporal_size": None}),
    "mvit_v2_s": (224, [256], {"min_size": (224, 224), "min_temporal_size": 16}),
    "s3d": (224, [256, 256], {"min_size": (224, 224), "min_temporal_size": 14}),
}
"""What torchvision 0.29 says of them: side of the square, resize, least sizes."""


def weights_of(name: str) -> types.SimpleNamespace:
    """What stands for torchvision's enumeration of a network's weights."""
    crop, resize, meta = PRESETS[name]
    preset = types.SimpleNamespace(
        crop_size=[crop, crop], resize_size=resize, mean=[0.43, 0.39, 0.38], std=[0.23, 0.22, 0.22]
    )
    return types.SimpleNamespace(
        DEFAULT=types.SimpleNamespace(transforms=lambda: preset, meta=meta)
    )


def build(name: str, *, weights: object) -> nn.Module:
    assert weights is None, "nothing is downloaded"
    return NETWORKS[name]()


@pytest.fixture
def torchvision(monkeypatch):
    """Stands in for torchvision: three video networks of its names."""
    for name in ("torchvision", "torchvision.models", "torchvision.models.video"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    models = sys.modules["torchvision.models"]
    models.video = sys.modules["torchvision.models.video"]
    models.list_models = lambda module: sorted(NETWORKS)
    models.get_model_weights, models.get_model = weights_of, build


@pytest.mark.usefixtures("torchvision")
def test_a_torchvision_network_gives_what_its_last_layer_is_given(tmp_path):
    torch.save(Residual().state_dict(), tmp_path / "r3d.pth")
    settings = settings_for("torchvision:r3d_18", weights=str(tmp_path / "r3d.pth"))
    encoder = load_encoder(settings, "cpu")
    assert tuple(encoder(WINDOWS).shape) == (2, encoder.feature_dim) == (2, 6)
    assert encoder.geometry == Geometry(frame_size=32, resize=(37, 49))
    assert encoder.network.mean == (0.43, 0.39, 0.38)


def large(name: str, frames: int = 16, **changes) -> EncodeSettings:
    sampling = {"frame_rate": 16, "frames": frames, "stride_seconds": 1, "tail": "repeat"}
    return settings_for(f"torchvision:{name}", sampling=sampling, **{"frame_size": 224} | changes)


@pytest.mark.usefixtures("torchvision")
def test_a_layer_that_classifies_every_place_is_taken_off_too():
    encoder = load_encoder(large("s3d"), "cpu")
    windows = torch.zeros(1, 4, 16, 16, 3, dtype=torch.uint8)
    assert tuple(encoder(windows).shape) == (1, encoder.feature_dim) == (1, 6)
    assert encoder.geometry == Geometry(frame_size=224, resize=(256, 256))


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("s3d", {"frame_size": 112}, "frame_size is 112, but torchvision:s3d takes at least 224"),
        ("s3d", {"frames": 8}, "sampling.frames is 8, but torchvision:s3d takes at least 14"),
        ("mvit_v2_s", {"frames": 32}, "frames is 32, but torchvision:mvit_v2_s takes 16: set"),
        ("mvit_v2_s", {"frame_size": 256}, "256, but torchvision:mvit_v2_s takes 224: set"),
    ],
)
def test_sizes_that_a_torchvision_network_cannot_take_are_one_line(name, changes, message):
    with pytest.raises(ValueError, match=message):
        load_encoder(large(name, **changes), "cpu")


@pytest.mark.usefixtures("torchvision")
def test_a_short_side_of_a_torchvision_preset_stays_one_number():
    assert load_encoder(large("mvit_v2_s"), "cpu").geometry == Geometry(224, resize=256)


@pytest.mark.usefixtures("torchvision")
def test_a_name_that_torchvision_lacks_is_one_line_with_those_it_has():
    with pytest.raises(ValueError, match="no video network 'resnet_7'; it has mvit_v2_s, r3d_18"):
        load_encoder(settings_for("torchvision:resnet_7"), "cpu")


def test_without_torchvision_its_networks_are_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models.video", None)
    with pytest.raises(ValueError, match="torchvision is not installed here: `pip install"):
        load_encoder(settings_for("torchvision:r3d_18"), "cpu")


@pytest.mark.parametrize(
    ("name", "size", "feature_dim"),
    [
        ("r3d_18", 112, 512),
        ("s3d", 224, 1024),
        ("mvit_v1_b", 224, 768),
        ("mvit_v2_s", 224, 768),
        ("swin3d_t", 64, 768),
    ],
)
def test_the_real_torchvision_knows_its_networks(name, size, feature_dim):
    pytest.importorskip("torchvision")
    encoder = load_encoder(large(name, frame_size=size), "cpu")
    windows = torch.randint(0, 256, (1, 16, size, size, 3), dtype=torch.uint8)
    found = encoder(windows)
    assert tuple(found.shape) == (1, encoder.feature_dim) == (1, feature_dim)
    assert bool(found.isfinite().all())
