"""Video networks of torchvision, where it is installed: `encoder: torchvision:r2plus1d_18`.

The last, classifying layer is taken off. Pictures are resized and normalised as the presets of
torchvision's Kinetics weights do it for the 3D residual networks. Weights come from a file, as for
every encoder; nothing is downloaded.
"""

from __future__ import annotations

import importlib
import inspect

import torch
from torch import nn

from pipeline.encoders.network import Network
from pipeline.settings import EncodeSettings

MEAN, STD = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989)
HEADS = ("fc", "head", "classifier")
"""What torchvision calls the last layer."""


def torchvision_network(settings: EncodeSettings) -> Network:
    """The network that stands behind `torchvision:` in the settings.

    Raises:
        ValueError: torchvision is not installed, or has no such video network.
    """
    name = settings.encoder.partition(":")[2]
    try:
        videos = importlib.import_module("torchvision.models.video")
    except ImportError:
        raise ValueError(
            f"encode.encoder is {settings.encoder}, and torchvision is not installed here:"
            " `pip install torchvision`, or choose another encoder"
        ) from None
    build = getattr(videos, name, None)
    if not inspect.isfunction(build):
        named = sorted(n for n in vars(videos) if inspect.isfunction(getattr(videos, n)))
        raise ValueError(f"torchvision has no video network {name!r}; it has {', '.join(named)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        module = build(weights=None)
    head, feature_dim = _without_head(module, name)
    return Network(
        module=module,
        frame_size=settings.frame_size,
        # As large beside a crop of any size as 128×171 is beside 112.
        resize=(round(128 * settings.frame_size / 112), round(171 * settings.frame_size / 112)),
        mean=MEAN,
        std=STD,
        feature_dim=feature_dim,
        left_out=(f"{head}.",),
    )


def _without_head(module: nn.Module, name: str) -> tuple[str, int]:
    """Take the last layer off in place; return its name and how many numbers it was given."""
    for head in HEADS:
        layer = getattr(module, head, None)
        linear = [part for part in layer.modules() if isinstance(part, nn.Linear)] if layer else []
        if len(linear) == 1:
            setattr(module, head, nn.Identity())
            return head, linear[0].in_features
    raise ValueError(f"torchvision's {name} has no single last layer to take off: use a factory")
