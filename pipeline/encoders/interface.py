"""What the encode stage asks of a network, and how it gets one.

Shapes: B windows, F features, H and W pixels.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pipeline.encoders.s3d import FEATURE_DIMS, S3D
from pipeline.encoders.s3d_weights import digest_of_state, load_state, randomize, read_state
from pipeline.formats.files import sha256_of_file
from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


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


class S3DEncoder:
    """S3D: a centre square, colours in [0, 1], no mean and standard deviation."""

    name = "s3d"

    def __init__(
        self, network: S3D, settings: EncodeSettings, device: torch.device, *, weights_sha256: str
    ):
        """Take over `network`: it is folded and moved, and no longer loads a state dict."""
        self.weights_sha256 = weights_sha256
        self.output = settings.output
        self.feature_dim = FEATURE_DIMS[settings.output]
        self.geometry = Geometry(frame_size=settings.frame_size, resize=None)
        self.device = device
        self.dtype = DTYPES[settings.precision]
        self.network = network.eval().requires_grad_(False).fold()
        self.network.to(device, self.dtype, memory_format=torch.channels_last_3d)

    @torch.inference_mode()
    def __call__(self, windows_BTHWC: Tensor) -> Tensor:
        """RGB, uint8 [B, frames, H, W, 3] -> float32 [B, F]."""
        # A permuted view of B,T,H,W,C is channels_last_3d already: nothing is copied.
        clips_BCTHW = windows_BTHWC.to(self.device).permute(0, 4, 1, 2, 3).to(self.dtype) / 255
        # On GPUs float32 convolutions would be TF32 (10 bits), by whichever algorithm is fastest.
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            return self.network(clips_BCTHW)[self.output].float()


def load_encoder(settings: EncodeSettings, device: torch.device | str) -> Encoder:
    """The encoder that the settings ask for, ready on `device`.

    Raises:
        FileNotFoundError: there is no file of weights.
        ValueError: the weights have another sha256 than asked for, or do not fit the network.
    """
    network = S3D(space_to_depth=settings.space_to_depth)
    if settings.weights == "random":
        randomize(network, settings.seed)
        digest = digest_of_state(network.state_dict())
        check_digest(settings, digest)
    else:
        digest = load_file(network, settings)
    return S3DEncoder(network, settings, torch.device(device), weights_sha256=digest)


def load_file(network: S3D, settings: EncodeSettings) -> str:
    """Load the weights file into `network`; return the file's sha256."""
    if not Path(settings.weights).is_file():
        raise FileNotFoundError(
            f"encode.weights {settings.weights} is no file: config/README.md says where released"
            " weights come from, and `random` needs none"
        )
    digest = sha256_of_file(settings.weights)
    check_digest(settings, digest)
    load_state(network, read_state(settings.weights), where=settings.weights)
    log.info("%s: sha256 %s", settings.weights, digest)
    return digest


def check_digest(settings: EncodeSettings, found: str) -> None:
    """Refuse weights other than those the settings name, if they name any."""
    expected = settings.weights_sha256
    if expected is not None and expected.lower() != found:
        raise ValueError(
            f"encode.weights {settings.weights} has sha256 {found}, encode.weights_sha256 is"
            f" {expected}: another file, or a broken download"
        )
