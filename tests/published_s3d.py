"""The published S3D's names and shapes, and random weights of them."""

from __future__ import annotations

import math

import torch

from pipeline.encoders.s3d import BLOCKS


def published_shapes(*, with_cells: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the published state dict, text tower left out, from its description."""
    shapes = {}

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    def convolution(name, inside, out, kernel=(1, 1, 1)):
        shapes[f"{name}.conv1.weight"] = (out, inside, *kernel)
        norm(f"{name}.bn1", out)

    def separable(name, inside, out):
        convolution(name, inside, out, (1, 3, 3))
        shapes[f"{name}.conv2.weight"] = (out, out, 3, 1, 1)
        norm(f"{name}.bn2", out)

    def linear(name, inside, out):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (out, inside), (out,)

    convolution("conv1", *((24, 64, (2, 4, 4)) if with_cells else (3, 64, (3, 7, 7))))
    convolution("conv_2b", 64, 64)
    separable("conv_2c", 64, 192)
    linear("gating.fc", 192, 192)
    inside = 192
    for block, (b0, b1_squeezed, b1, b2_squeezed, b2, b3) in BLOCKS.items():
        convolution(f"{block}.conv_b0", inside, b0)
        convolution(f"{block}.conv_b1_a", inside, b1_squeezed)
        separable(f"{block}.conv_b1_b", b1_squeezed, b1)
        convolution(f"{block}.conv_b2_a", inside, b2_squeezed)
        separable(f"{block}.conv_b2_b", b2_squeezed, b2)
        convolution(f"{block}.conv_b3_b", inside, b3)
        for number, width in enumerate((b0, b1, b2, b3)):
            linear(f"{block}.gating_b{number}.fc", width, width)
        inside = b0 + b1 + b2 + b3
    linear("fc", 1024, 512)
    return shapes


def published_state(*, with_cells: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    state = {}
    for name, shape in published_shapes(with_cells=with_cells).items():
        scale = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.1
        state[name] = torch.randn(shape, generator=generator) * scale
        if name.endswith(("running_var", "bn1.weight", "bn2.weight")):
            state[name] = 0.5 + torch.rand(shape, generator=generator)
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
    return state
