"""C3D, the 3D network of 3×3×3 kernels, up to its layer `fc6`.

Tran et al., "Learning Spatiotemporal Features with 3D Convolutional Networks" (arXiv 1412.0767):
16 frames scaled to 128×171, the centre 112×112 cut out, a mean taken off, 4096 numbers after fc6
and its ReLU. Parameters bear the names of the network's Caffe layers, as in the usual ports to
PyTorch; fc7 and fc8 of such a file are left out.

Shapes: B clips, C channels, T frames, H and W pixels, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pipeline.encoders.network import Network
from pipeline.settings import EncodeSettings

LAYERS = {
    "conv1": (3, 64),
    "conv2": (64, 128),
    "conv3a": (128, 256),
    "conv3b": (256, 256),
    "conv4a": (256, 512),
    "conv4b": (512, 512),
    "conv5a": (512, 512),
    "conv5b": (512, 512),
}
"""Channels in and out."""

POOLS = {
    "conv1": ((1, 2, 2), (0, 0, 0)),
    "conv2": ((2, 2, 2), (0, 0, 0)),
    "conv3b": ((2, 2, 2), (0, 0, 0)),
    "conv4b": ((2, 2, 2), (0, 0, 0)),
    "conv5b": ((2, 2, 2), (0, 1, 1)),
}
"""The layers that a max pool follows: its kernel, which is its stride, and its padding."""

MEAN_RGB = (102.0, 98.0, 90.0)
"""The mean colour of Sports-1M; the original takes off a mean clip, which is nearly flat."""


class C3D(nn.Module):
    """[B, 3, 16, 112, 112] -> [B, 4096]."""

    def __init__(self):
        super().__init__()
        for name, (inside, out) in LAYERS.items():
            self.add_module(name, nn.Conv3d(inside, out, 3, padding=1))
        self.fc6 = nn.Linear(8192, 4096)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """BGR from 0 to 255, the mean taken off -> what follows fc6's ReLU."""
        for name in LAYERS:
            x_BCTHW = self.get_submodule(name)(x_BCTHW).relu()
            if name in POOLS:
                kernel, padding = POOLS[name]
                x_BCTHW = nn.functional.max_pool3d(x_BCTHW, kernel, kernel, padding)
        return self.fc6(x_BCTHW.flatten(1)).relu()


def c3d(settings: EncodeSettings) -> Network:
    """C3D with random weights of the settings' seed (He et al., arXiv 1502.01852)."""
    network = C3D()
    generator = torch.Generator().manual_seed(settings.seed)
    for name, weight in network.named_parameters():
        with torch.no_grad():
            if name.endswith("bias"):
                weight.zero_()
                continue
            # Colours reach 255: the first layer is drawn so much narrower.
            scale = (1 / 128 if name == "conv1.weight" else 1) * math.sqrt(2)
            fan_in = math.prod(weight.shape[1:])
            weight.normal_(std=scale / math.sqrt(fan_in), generator=generator)
    return Network(
        module=network,
        frames=16,
        frame_size=112,
        resize=(128, 171),
        highest=255,
        mean=MEAN_RGB,
        colours="BGR",
        feature_dim=4096,
        left_out=("fc7.", "fc8."),
    )
