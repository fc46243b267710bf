"""C3D, the 3D network of 3×3×3 kernels, up to its layer `fc6`.

Tran et al., "Learning Spatiotemporal Features with 3D Convolutional Networks" (arXiv 1412.0767).
What it eats is read from the authors' Caffe code (github.com/facebook/C3D, C3D-v1.0: the feature
extractor's prototxt, `video_data_layer.cpp`, `image_io.cpp`): 16 frames of any size scaled to
128×171, the centre 112×112 cut out, colours from 0 to 255 in OpenCV's order, blue first, the mean
of Sports-1M taken off, no standard deviation. The feature is the blob `fc6-1`, 4096 numbers behind
its ReLU, which works in place.

Parameters bear the names of the port whose weights most use (github.com/DavideA/c3d-pytorch,
`c3d.pickle`): conv1, conv2, conv3a ... conv5b, fc6, fc7, fc8; fc7 and fc8 are left out. They are
Caffe's numbers unchanged, so what goes for Caffe goes for them, and this port differs from that one
where that one differs from Caffe: it feeds red first and takes no mean off (its issue 1), and pads
the last pool on both sides (github.com/chuckcho/c3d-keras, issue 15; `pool3d_layer.cpp`).

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
    "conv1": (1, 2, 2),
    "conv2": (2, 2, 2),
    "conv3b": (2, 2, 2),
    "conv4b": (2, 2, 2),
    "conv5b": (2, 2, 2),
}
"""The layers that a max pool follows, and its kernel, which is its stride."""

MEAN_RGB = (101.41, 97.66, 90.25)
"""Of the mean clip of Sports-1M (`sport1m_train16_128_mean.binaryproto`), as measured in issue 1 of
the port above; the original takes off the clip itself, which is nearly flat."""


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
                # As Caffe, which rounds sizes up: the last seven places become four.
                x_BCTHW = nn.functional.max_pool3d(x_BCTHW, POOLS[name], ceil_mode=True)
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
