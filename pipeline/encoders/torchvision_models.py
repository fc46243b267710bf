"""Video networks of torchvision, where it is installed: `encoder: torchvision:r2plus1d_18`.

The last, classifying layer is taken off. Pictures are resized and normalised as torchvision's own
preset for the network's Kinetics weights says, in proportion where encode.frame_size is another.
Weights come from a file, as for every encoder; nothing is downloaded. Tried with torchvision 0.29:
r3d_18, mc3_18, r2plus1d_18, s3d, mvit_v1_b, mvit_v2_s and swin3d_t.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import nn

from pipeline.encoders.network import Network
from pipeline.settings import EncodeSettings

HEADS = ("fc", "head", "classifier")
"""What torchvision calls the last layer."""


def torchvision_network(settings: EncodeSettings) -> Network:
    """The network that stands behind `torchvision:` in the settings.

    Raises:
        ValueError: torchvision is not installed, has no such video network, or that one needs
            larger pictures or more frames.
    """
    name = settings.encoder.partition(":")[2]
    models = _models(settings)
    known = models.list_models(module=models.video)
    if name not in known:
        raise ValueError(f"torchvision has no video network {name!r}; it has {', '.join(known)}")
    weights = models.get_model_weights(name).DEFAULT
    _check_least(weights.meta, settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        module = models.get_model(name, weights=None)
    head, feature_dim = _without_head(module, name)
    preset = weights.transforms()
    # Places are learned for each patch: a network that has them takes one size and length.
    fixed = hasattr(module, "pos_encoding")
    crop = preset.crop_size[0]
    return Network(
        module=module,
        frame_size=crop if fixed else settings.frame_size,
        frames=weights.meta["min_temporal_size"] if fixed else None,
        resize=_resize(preset.resize_size, 1 if fixed else settings.frame_size / crop),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        feature_dim=feature_dim,
        left_out=(f"{head}.",),
    )


def _models(settings: EncodeSettings) -> ModuleType:
    try:
        importlib.import_module("torchvision.models.video")
        return importlib.import_module("torchvision.models")
    except ImportError:
        raise ValueError(
            f"encode.encoder is {settings.encoder}, and torchvision is not installed here:"
            " `pip install torchvision`, or choose another encoder"
        ) from None


def _check_least(meta: dict, settings: EncodeSettings) -> None:
    """Refuse pictures or windows that are smaller than the network's layers need."""
    needed = {
        "frame_size": (settings.frame_size, max(meta.get("min_size") or (1,))),
        "sampling.frames": (settings.grid.frames, meta.get("min_temporal_size") or 1),
    }
    for key, (found, least) in needed.items():
        if found < least:
            raise ValueError(
                f"encode.{key} is {found}, but {settings.encoder} takes at least {least}"
            )


def _resize(preset: list[int], scale: float) -> int | tuple[int, int]:
    """As `pixels.Geometry` has it: one number is the short side, two are height and width."""
    sides = [round(side * scale) for side in preset]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _without_head(module: nn.Module, name: str) -> tuple[str, int]:
    """Take the last layer off in place; return its name and how many numbers it was given."""
    for head in HEADS:
        layer = getattr(module, head, None)
        parts = list(layer.modules()) if layer else []
        # s3d classifies every place with a convolution, and takes the mean behind it.
        sizes = [part.in_features for part in parts if isinstance(part, nn.Linear)]
        sizes += [part.in_channels for part in parts if isinstance(part, nn.Conv3d)]
        if len(sizes) == 1:
            setattr(module, head, nn.Identity())
            return head, sizes[0]
    raise ValueError(f"torchvision's {name} has no single last layer to take off: use a factory")
