"""S3D-G, the separable 3D network with feature gating, as trained on HowTo100M.

Architecture: Xie et al., "Rethinking Spatiotemporal Feature Learning" (arXiv 1712.04851). The
weights that fit it: Miech et al., "End-to-End Learning of Visual Representations from Uncurated
Instructional Videos" (arXiv 1912.06430). Every parameter bears its published name, so the released
state dict loads with strict key matching; its text tower (`text_module.*`) is no part of this.

Shapes: B clips, C channels, T frames, H and W pixels.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from pipeline.settings import FEATURE_DIMS

BLOCKS = {
    "mixed_3b": (64, 96, 128, 16, 32, 32),
    "mixed_3c": (128, 128, 192, 32, 96, 64),
    "mixed_4b": (192, 96, 208, 16, 48, 64),
    "mixed_4c": (160, 112, 224, 24, 64, 64),
    "mixed_4d": (128, 128, 256, 24, 64, 64),
    "mixed_4e": (112, 144, 288, 32, 64, 64),
    "mixed_4f": (256, 160, 320, 32, 128, 128),
    "mixed_5b": (256, 160, 320, 32, 128, 128),
    "mixed_5c": (384, 192, 384, 48, 128, 128),
}
"""Channels of each inception block: branch 0, branch 1 squeezed and out, branch 2 squeezed and out,
branch 3 (after its pooling)."""

TRUNK = ("conv1", "conv_2b", "conv_2c", "gating", *BLOCKS)
"""The layers from picture to `mixed_5c`, in order."""

POOLS = {
    "conv1": ((1, 3, 3), (1, 2, 2)),
    "gating": ((1, 3, 3), (1, 2, 2)),
    "mixed_3c": ((3, 3, 3), (2, 2, 2)),
    "mixed_4f": ((2, 2, 2), (2, 2, 2)),
}
"""The layers that a max pool follows, with its kernel and stride."""


class Convolution(nn.Module):
    """Convolution, batch norm and ReLU; `separable` adds the same again along time alone."""

    def __init__(
        self,
        channels: tuple[int, int],
        kernel: tuple[int, int, int] = (1, 1, 1),
        *,
        stride: int = 1,
        padding: tuple[int, int, int] = (0, 0, 0),
        separable: bool = False,
    ):
        super().__init__()
        if separable:
            assert stride == 1, "no separable convolution of S3D has a stride"
            space, time = (1, *kernel[1:]), (kernel[0], 1, 1)
            space_padding, time_padding = (0, *padding[1:]), (padding[0], 0, 0)
        else:
            space, space_padding = kernel, padding
        self.conv1 = nn.Conv3d(*channels, space, stride, space_padding, bias=False)
        self.bn1: nn.Module = nn.BatchNorm3d(channels[1])
        self.separable = separable
        if separable:
            self.conv2 = nn.Conv3d(channels[1], channels[1], time, 1, time_padding, bias=False)
            self.bn2: nn.Module = nn.BatchNorm3d(channels[1])

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """[B, C, T, H, W] -> [B, C', T', H', W'], nowhere negative."""
        x_BCTHW = nn.functional.relu(self.bn1(self.conv1(x_BCTHW)), inplace=True)
        if self.separable:
            x_BCTHW = nn.functional.relu(self.bn2(self.conv2(x_BCTHW)), inplace=True)
        return x_BCTHW

    def fold(self) -> None:
        """Move the batch norms' frozen statistics into the convolutions before them."""
        if isinstance(self.bn1, nn.BatchNorm3d):
            self.conv1, self.bn1 = _folded(self.conv1, self.bn1), nn.Identity()
        if self.separable and isinstance(self.bn2, nn.BatchNorm3d):
            self.conv2, self.bn2 = _folded(self.conv2, self.bn2), nn.Identity()


def _folded(conv: nn.Conv3d, norm: nn.BatchNorm3d) -> nn.Conv3d:
    """`norm(conv(x))` as one convolution, computed in float64 and rounded once."""
    dtype = conv.weight.dtype
    return fuse_conv_bn_eval(conv.double(), norm.double()).to(dtype)


class Gating(nn.Module):
    """Scales each channel by a sigmoid of all channels' means over the clip."""

    def __init__(self, channels: int):
        super().__init__()
        self.fc = nn.Linear(channels, channels)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """[B, C, T, H, W] -> the same shape."""
        gate_BC = torch.sigmoid(self.fc(x_BCTHW.mean(dim=(2, 3, 4))))
        return gate_BC[:, :, None, None, None] * x_BCTHW


class Inception(nn.Module):
    """Four gated branches side by side: 1×1×1, two separable 3×3×3, and max pool with 1×1×1."""

    def __init__(self, channels: int, widths: tuple[int, int, int, int, int, int]):
        super().__init__()
        b0, b1_squeezed, b1, b2_squeezed, b2, b3 = widths
        cube = partial(Convolution, kernel=(3, 3, 3), padding=(1, 1, 1), separable=True)
        self.conv_b0 = Convolution((channels, b0))
        self.conv_b1_a = Convolution((channels, b1_squeezed))
        self.conv_b1_b = cube((b1_squeezed, b1))
        self.conv_b2_a = Convolution((channels, b2_squeezed))
        self.conv_b2_b = cube((b2_squeezed, b2))
        self.conv_b3_b = Convolution((channels, b3))
        self.gating_b0 = Gating(b0)
        self.gating_b1 = Gating(b1)
        self.gating_b2 = Gating(b2)
        self.gating_b3 = Gating(b3)
        self.out_channels = b0 + b1 + b2 + b3

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """[B, C, T, H, W] -> [B, out_channels, T, H, W]."""
        pooled_BCTHW = nn.functional.max_pool3d(x_BCTHW, 3, stride=1, padding=1)
        branches = (
            self.gating_b0(self.conv_b0(x_BCTHW)),
            self.gating_b1(self.conv_b1_b(self.conv_b1_a(x_BCTHW))),
            self.gating_b2(self.conv_b2_b(self.conv_b2_a(x_BCTHW))),
            self.gating_b3(self.conv_b3_b(pooled_BCTHW)),
        )
        return torch.cat(branches, dim=1)


class S3D(nn.Module):
    """The network from pictures to `mixed_5c` (1024 numbers) and `embedding` (512).

    `space_to_depth` chooses the stem: 2×2×2 cells of the picture become channels before a 2×4×4
    convolution (the released weights), or a plain 3×7×7 convolution of stride 2.
    """

    def __init__(self, *, space_to_depth: bool):
        super().__init__()
        self.space_to_depth = space_to_depth
        channels = stem_channels(space_to_depth=space_to_depth)
        if space_to_depth:
            self.conv1 = Convolution((channels, 64), (2, 4, 4))
        else:
            self.conv1 = Convolution((channels, 64), (3, 7, 7), stride=2, padding=(1, 3, 3))
        self.conv_2b = Convolution((64, 64))
        self.conv_2c = Convolution((64, 192), (3, 3, 3), padding=(1, 1, 1), separable=True)
        self.gating = Gating(192)
        channels = 192
        for name, widths in BLOCKS.items():
            block = Inception(channels, widths)
            self.add_module(name, block)
            channels = block.out_channels
        self.fc = nn.Linear(channels, FEATURE_DIMS["embedding"])

    def forward(self, clips_BCTHW: Tensor) -> dict[str, Tensor]:
        """RGB in [0, 1], [B, 3, T, H, W] with even T, H and W -> {output name: [B, F]}."""
        x_BCTHW = clips_BCTHW
        if self.space_to_depth:
            x_BCTHW = space_to_depth(pad_for_stem(x_BCTHW))
        for name in TRUNK:
            x_BCTHW = self.get_submodule(name)(x_BCTHW)
            if name in POOLS:
                x_BCTHW = max_pool(x_BCTHW, *POOLS[name])
        pooled_BC = x_BCTHW.mean(dim=(2, 3, 4))
        return {"mixed_5c": pooled_BC, "embedding": self.fc(pooled_BC)}

    def fold(self) -> S3D:
        """For inference alone: fold every batch norm into its convolution, which changes names."""
        for module in self.modules():
            if isinstance(module, Convolution):
                module.fold()
        return self


def stem_channels(*, space_to_depth: bool) -> int:
    """Channels that the first convolution sees: three colours of each pixel of a cell."""
    return 24 if space_to_depth else 3


def pad_for_stem(clips_BCTHW: Tensor) -> Tensor:
    """Zeros around a clip such that the space-to-depth stem pads as TensorFlow's SAME does.

    A kernel of 2×4×4 cells needs (0, 1) cells in time and (1, 2) in space; a cell is 2×2×2 pixels.
    """
    return nn.functional.pad(clips_BCTHW, (2, 4, 2, 4, 0, 2))


def space_to_depth(clips_BCTHW: Tensor) -> Tensor:
    """[B, C, T, H, W] -> [B, 8·C, T/2, H/2, W/2]: each 2×2×2 cell's pixels become channels.

    The channels are ordered by place in the cell (time, row, column), then by colour.
    """
    B, C, T, H, W = clips_BCTHW.shape
    cells = clips_BCTHW.reshape(B, C, T // 2, 2, H // 2, 2, W // 2, 2)
    return cells.permute(0, 3, 5, 7, 1, 2, 4, 6).reshape(B, 8 * C, T // 2, H // 2, W // 2)


def max_pool(x_BCTHW: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Max pool as the released weights saw it: kernel - stride zeros, the odd one at the end, and
    windows that reach over the edge kept.

    At odd sizes this is not TensorFlow's SAME, which would put a zero in front as well.
    """
    padding = []
    for size, step in zip(reversed(kernel), reversed(stride), strict=True):
        total = max(size - step, 0)
        padding += [total // 2, total - total // 2]
    return nn.functional.max_pool3d(
        nn.functional.pad(x_BCTHW, padding), kernel, stride, ceil_mode=True
    )
