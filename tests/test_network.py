"""Networks of others: fed as they ask, averaged over a window, and held to what they say."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from pipeline.encoders.interface import load_encoder
from pipeline.encoders.network import LAYOUTS, Network
from pipeline.formats.files import sha256_of_file
from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings
from tests.examples import encode_settings

SETTINGS = encode_settings()
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
    """Those of `encode_settings`, for a network of that name."""
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
