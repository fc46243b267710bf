"""Other networks: a factory describes what a network eats, and the adapter feeds it just that."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeline.encoders.interface import load_encoder
from pipeline.encoders.network import LAYOUTS, Network
from pipeline.formats.files import sha256_of_file
from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings
from tests.test_encoder_interface import SETTINGS

NAME = f"{__name__}:per_frame"
WINDOWS = torch.arange(2 * 8 * 32 * 32 * 3).reshape(2, 8, 32, 32, 3).remainder(251).byte()


class Pictures(nn.Module):
    """A 2D network: it sees one picture at a time."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 7, stride=4)

    def forward(self, pictures_BCHW):
        assert pictures_BCHW.ndim == 4
        return self.conv(pictures_BCHW).relu().mean(dim=(2, 3))


def per_frame(settings: EncodeSettings) -> Network:
    torch.manual_seed(settings.seed)
    return Network(
        module=Pictures(),
        layout="frames",
        frame_size=32,
        resize=40,
        mean=(0.4, 0.5, 0.6),
        std=(0.2, 0.3, 0.4),
        feature_dim=5,
    )


class Echo(nn.Module):
    """Gives back what it was fed, so that a test can look at it."""

    def forward(self, x):
        self.seen = x
        return x.new_zeros(len(x), 1)


def echo(settings: EncodeSettings) -> Network:
    return dataclasses.replace(ECHO[0], module=Echo())


ECHO = [Network(module=Echo(), frame_size=32, feature_dim=1)]


def settings_for(name: str, **changes) -> EncodeSettings:
    return dataclasses.replace(SETTINGS, encoder=name, output="features", **changes)


def test_a_2d_network_sees_every_frame_and_is_averaged_over_the_window():
    encoder = load_encoder(settings_for(NAME), "cpu")
    found = encoder(WINDOWS)
    network = per_frame(SETTINGS).module
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.4])
    with torch.inference_mode():
        for b in range(2):
            frames = ((WINDOWS[b].float() / 255 - mean) / std).permute(0, 3, 1, 2)
            torch.testing.assert_close(found[b], network(frames).mean(dim=0), rtol=1e-4, atol=1e-5)
    assert (encoder.name, encoder.feature_dim) == (NAME, 5)
    assert encoder.geometry == Geometry(frame_size=32, resize=40)


def test_the_identity_has_the_factory_s_name_and_its_weights(tmp_path):
    digests = {load_encoder(settings_for(NAME, seed=s), "cpu").weights_sha256 for s in (0, 0, 1)}
    assert len(digests) == 2
    torch.manual_seed(9)
    state = Pictures().state_dict()
    torch.save(state, tmp_path / "pictures.pth")
    encoder = load_encoder(settings_for(NAME, weights=str(tmp_path / "pictures.pth")), "cpu")
    assert encoder.weights_sha256 == sha256_of_file(tmp_path / "pictures.pth")
    assert torch.equal(encoder.module.conv.weight, state["conv.weight"])
    torch.save({"other": state["conv.bias"]}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=f"does not fit {NAME}: missing conv.weight, conv.bias"):
        load_encoder(settings_for(NAME, weights=str(tmp_path / "other.pth")), "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("highest", "colours"), [(1.0, "RGB"), (255.0, "BGR")])
def test_a_network_is_fed_as_it_asks(layout, highest, colours):
    ECHO[0] = Network(
        module=Echo(),
        frame_size=32,
        feature_dim=1,
        layout=layout,
        highest=highest,
        colours=colours,
        mean=(0.1, 0.2, 0.3),
    )
    encoder = load_encoder(settings_for(f"{__name__}:echo"), "cpu")
    encoder(WINDOWS)
    b, t, h, w, c = 1, 3, 5, 7, 0
    value = WINDOWS[b, t, h, w, c].item() / 255 * highest - 0.1
    place = {"RGB": c, "BGR": 2 - c}[colours]
    at = {
        "BCTHW": (b, place, t, h, w),
        "BTCHW": (b, t, place, h, w),
        "BTHWC": (b, t, h, w, place),
        "frames": (b * 8 + t, place, h, w),
    }[layout]
    assert encoder.module.seen[at].item() == pytest.approx(value, abs=1e-5)


def test_settings_that_do_not_fit_the_network_say_what_it_takes():
    ECHO[0] = Network(module=Echo(), frame_size=64, feature_dim=1)
    with pytest.raises(ValueError, match=r"frame_size is 32, but \S+:echo takes 64: set it so"):
        load_encoder(settings_for(f"{__name__}:echo"), "cpu")
    ECHO[0] = Network(module=Echo(), frame_size=32, feature_dim=1, frames=16)
    with pytest.raises(ValueError, match=r"sampling\.frames is 8, but \S+:echo takes 16"):
        load_encoder(settings_for(f"{__name__}:echo"), "cpu")


def test_features_of_another_shape_than_promised_are_refused():
    ECHO[0] = Network(module=Echo(), frame_size=32, feature_dim=2)
    encoder = load_encoder(settings_for(f"{__name__}:echo"), "cpu")
    with pytest.raises(ValueError, match=r"shape \(2, 1\) for a batch of 2 windows, expected"):
        encoder(WINDOWS)


def no_network(settings: EncodeSettings) -> nn.Module:
    return Echo()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package:make", "No module named 'no_such_package'"),
        (f"{__name__}:nothing", "has no function 'nothing'"),
        (f"{__name__}:no_network", "returned Echo, must return"),
    ],
)
def test_a_factory_that_is_none_is_one_line(name, message):
    with pytest.raises(ValueError, match=message):
        load_encoder(settings_for(name), "cpu")


def test_a_description_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="layout 'BHWC', allowed: BCTHW"):
        Network(module=Echo(), frame_size=32, feature_dim=1, layout="BHWC")
    with pytest.raises(ValueError, match="colours 'GBR', allowed"):
        Network(module=Echo(), frame_size=32, feature_dim=1, colours="GBR")


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


def test_an_encoder_that_is_neither_ours_nor_a_factory_is_refused():
    with pytest.raises(ValueError, match="encoder is 'clip', allowed: s3d, c3d, torchvision:NAME"):
        dataclasses.replace(SETTINGS, encoder="clip")
