"""What the encode stage asks of a network, and how it gets one.

Shapes: B windows, F features, H and W pixels.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pipeline.encoders.c3d import c3d
from pipeline.encoders.network import Network, NetworkEncoder
from pipeline.encoders.s3d_encoder import S3DEncoder, s3d
from pipeline.encoders.s3d_weights import digest_of_state, load_state, read_state
from pipeline.encoders.torchvision_models import torchvision_network
from pipeline.formats.files import sha256_of_file
from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """A frozen network from windows of pictures to feature vectors.

    It gets pictures as they are decoded and does its own scaling, mean and standard deviation,
    layout and precision. A window's features must not depend on the other windows of its batch.
    """

    name: str
    """As in the settings."""
    weights_sha256: str
    """Of the weights file, or of the random weights."""
    feature_dim: int
    geometry: Geometry
    """How a picture is resized and cropped before the network sees it."""
    device: torch.device
    """Where it runs."""

    def __call__(self, windows_BTHWC: Tensor) -> Tensor:
        """RGB, uint8 [B, frames, H, W, 3] on any device -> float32 [B, F] on the encoder's."""


FACTORIES = {"s3d": s3d, "c3d": c3d}


def load_encoder(
    settings: EncodeSettings, device: torch.device | str, *, compiled: bool = False
) -> Encoder:
    """The encoder that the settings ask for, ready on `device`.

    Raises:
        FileNotFoundError: there is no file of weights.
        ValueError: there is no such factory, the settings do not fit the network, or the weights
            have another sha256 than asked for or do not fit it.
    """
    network = factory_of(settings)(settings)
    if not isinstance(network, Network):
        raise ValueError(
            f"encode.encoder {settings.encoder} returned {type(network).__name__}, must return a"
            " pipeline.encoders.network.Network"
        )
    network.check(settings)
    digest = load_weights(network, settings)
    adapter = S3DEncoder if settings.encoder == "s3d" else NetworkEncoder
    return adapter(
        network, settings, torch.device(device), weights_sha256=digest, compiled=compiled
    )


def factory_of(settings: EncodeSettings) -> Callable[[EncodeSettings], Network]:
    """The function that makes the network: one of ours, or `package.module:factory`."""
    if settings.encoder in FACTORIES:
        return FACTORIES[settings.encoder]
    module, _, name = settings.encoder.partition(":")
    if module == "torchvision":
        return torchvision_network
    try:
        factory = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ValueError(f"encode.encoder {settings.encoder}: {error}") from None
    if not callable(factory):
        raise ValueError(
            f"encode.encoder {settings.encoder}: {module} has no function {name!r}; it must take"
            " the settings and return a pipeline.encoders.network.Network"
        )
    return factory


def load_weights(network: Network, settings: EncodeSettings) -> str:
    """Load the weights file into `network`, if one is named; return the sha256 of the weights."""
    if settings.weights == "random":
        digest = digest_of_state(network.module.state_dict())
        check_digest(settings, digest)
        return digest
    if not Path(settings.weights).is_file():
        raise FileNotFoundError(
            f"encode.weights {settings.weights} is no file: config/README.md says where released"
            " weights come from, and `random` needs none"
        )
    digest = sha256_of_file(settings.weights)
    check_digest(settings, digest)
    load_state(
        network.module,
        read_state(settings.weights),
        where=settings.weights,
        encoder=settings.encoder,
        left_out=network.left_out,
    )
    logger.info("%s: sha256 %s", settings.weights, digest)
    return digest


def check_digest(settings: EncodeSettings, found: str) -> None:
    """Refuse weights other than those the settings name, if they name any."""
    expected = settings.weights_sha256
    if expected is not None and expected.lower() != found:
        raise ValueError(
            f"encode.weights {settings.weights} has sha256 {found}, encode.weights_sha256 is"
            f" {expected}: another file, or a broken download"
        )
