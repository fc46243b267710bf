"""S3D as a CPU runs it fastest: the same numbers as `s3d.S3D` up to rounding, and no state dict.

What makes the difference (measured by tests/benchmarks): batch norms are folded into convolutions;
channels stay last in memory, so that a 1×1×1 convolution (PyTorch has a slow loop for it in 3D), a
1×3×3 or a 3×1×1 one is a 2D convolution, and the first layer's cells are cut out of the bytes of
the picture; gated branches are written into their place of the block's output; pooling along time
is an elementwise maximum, and so is that of stride 1 in space. Nine tenths of what is left are
convolutions at the peak of the processor. 1/255 goes into the first weights: whole numbers up to
255 are exact in bfloat16, fractions are not.

Shapes: B clips, T frames, H and W pixels, C channels, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.encoders.s3d import BLOCKS, POOLS, S3D, Convolution, Gating, Inception

Weights = tuple[Tensor, Tensor]
"""A folded convolution: weight and bias."""


def computes_bfloat16() -> bool:
    """Whether this CPU has the instructions (AVX-512) with which oneDNN computes in bfloat16."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


class FoldedS3D(nn.Module):
    """S3D for inference; made from one, whose weights it copies."""

    def __init__(self, network: S3D, dtype: torch.dtype):
        super().__init__()
        self.space_to_depth, self.dtype = network.space_to_depth, dtype
        network = network.fold()
        self.stem = _stem_weights(network, dtype)
        self.conv_2b = _pointwise(network.conv_2b, dtype)
        self.conv_2c = _separable(network.conv_2c, dtype)
        self.gating = _Gate(network.gating)
        self.blocks = nn.ModuleDict({name: _block(network, name, dtype) for name in BLOCKS})
        self.fc = network.fc.float()

    def forward(self, windows_BTHWC: Tensor) -> dict[str, Tensor]:
        """RGB, uint8 [B, T, H, W, 3] with even T, H and W -> {output name: float32 [B, F]}."""
        # One clip at a time: its numbers stay in the caches, and no other clip can move them.
        pooled_BC = torch.cat([self._pooled(clip_BTHWC) for clip_BTHWC in windows_BTHWC.split(1)])
        return {"mixed_5c": pooled_BC, "embedding": self.fc(pooled_BC)}

    def _pooled(self, clip_BTHWC: Tensor) -> Tensor:
        x_BTHWC = pool(self._stem(clip_BTHWC), "conv1")
        x_BTHWC = _along_channels(x_BTHWC, self.conv_2b)
        x_BTHWC = _along_time(_along_space(x_BTHWC, self.conv_2c[0]), self.conv_2c[1])
        x_BTHWC = pool(self.gating(x_BTHWC, x_BTHWC), "gating")
        for name, block in self.blocks.items():
            x_BTHWC = pool(block(x_BTHWC), name)
        return x_BTHWC.mean(dim=(1, 2, 3), dtype=torch.float32)

    def _stem(self, clip_BTHWC: Tensor) -> Tensor:
        if not self.space_to_depth:
            x_BCTHW = clip_BTHWC.to(self.dtype).permute(0, 4, 1, 2, 3)
            out_BCTHW = functional.conv3d(x_BCTHW, *self.stem, stride=2, padding=(1, 3, 3))
            return out_BCTHW.relu_().permute(0, 2, 3, 4, 1).contiguous()
        cells_BTHWC = overlapping_cells(clip_BTHWC).to(self.dtype)
        return _as_pictures(cells_BTHWC, self.stem, padding=0)


class _Gate(nn.Module):
    """`s3d.Gating`; the gate itself is computed in float32, and moves all numbers of a channel."""

    def __init__(self, gating: Gating):
        super().__init__()
        self.fc = gating.fc.float()

    def forward(self, x_BTHWC: Tensor, out_BTHWC: Tensor) -> Tensor:
        mean_BC = x_BTHWC.mean(dim=(1, 2, 3), dtype=torch.float32)
        gate_BC = torch.sigmoid(self.fc(mean_BC)).to(x_BTHWC.dtype)
        return torch.mul(x_BTHWC, gate_BC[:, None, None, None], out=out_BTHWC)


class _Block(nn.Module):
    """`s3d.Inception`."""

    def __init__(self, block: Inception, dtype: torch.dtype):
        super().__init__()
        squeezing = (block.conv_b0, block.conv_b1_a, block.conv_b2_a)
        weights, biases = zip(*(_pointwise(conv, dtype) for conv in squeezing), strict=True)
        self.squeeze = (_last(torch.cat(weights)), torch.cat(biases))
        self.squeezed = [conv.conv1.out_channels for conv in squeezing]
        self.conv_b1_b = _separable(block.conv_b1_b, dtype)
        self.conv_b2_b = _separable(block.conv_b2_b, dtype)
        self.conv_b3_b = _pointwise(block.conv_b3_b, dtype)
        gates = (block.gating_b0, block.gating_b1, block.gating_b2, block.gating_b3)
        self.widths = [gate.fc.out_features for gate in gates]
        self.gates = nn.ModuleList(_Gate(gate) for gate in gates)

    def forward(self, x_BTHWC: Tensor) -> Tensor:
        out_BTHWC = x_BTHWC.new_empty(*x_BTHWC.shape[:-1], sum(self.widths))
        # One convolution for three branches: the input is read once.
        plain, *narrow = _along_channels(x_BTHWC, self.squeeze).split(self.squeezed, dim=-1)
        branches = [
            plain,
            *(
                _along_time(_along_space(y_BTHWC.contiguous(), space), time)
                for y_BTHWC, (space, time) in zip(
                    narrow, (self.conv_b1_b, self.conv_b2_b), strict=True
                )
            ),
            _along_channels(highest_neighbour(x_BTHWC), self.conv_b3_b),
        ]
        places = out_BTHWC.split(self.widths, dim=-1)
        for gate, branch_BTHWC, place_BTHWC in zip(self.gates, branches, places, strict=True):
            gate(branch_BTHWC, place_BTHWC)
        return out_BTHWC


def _block(network: S3D, name: str, dtype: torch.dtype) -> _Block:
    block = network.get_submodule(name)
    assert isinstance(block, Inception)
    return _Block(block, dtype)


def overlapping_cells(clips_BTHWC: Tensor) -> Tensor:
    """[B, T, H, W, C] -> [B, T/2, H/2 + 3, W/2 + 3, 16·C]: what a kernel of 2×4×4 cells sees.

    As `s3d.space_to_depth(s3d.pad_for_stem(...))`, with each cell beside the one after it in time,
    so that the kernel becomes a 2D one. Channels: cell (2), then its time, row, column, colour.
    """
    padded = functional.pad(clips_BTHWC, (0, 0, 2, 4, 2, 4, 0, 2))
    B, T, H, W, C = padded.shape
    # Two pixels side by side are 2·C bytes in a row, which move as C numbers of two bytes.
    rows = padded.reshape(B, T // 2, 2, H // 2, 2, W // 2, 2 * C).view(torch.int16)
    cells = rows.permute(0, 1, 3, 5, 2, 4, 6).contiguous().view(torch.uint8)
    cells = cells.view(B, T // 2, H // 2, W // 2, 8 * C)
    return torch.cat((cells[:, :-1], cells[:, 1:]), dim=-1)


def pool(x_BTHWC: Tensor, after: str) -> Tensor:
    """The max pool behind a layer, if it has one; as `s3d.max_pool` for numbers that are >= 0."""
    if after not in POOLS:
        return x_BTHWC
    (time, kernel, _), (time_stride, stride, _) = POOLS[after]
    B, T, H, W, C = x_BTHWC.shape
    pictures_BCHW = x_BTHWC.reshape(B * T, H, W, C).permute(0, 3, 1, 2)
    # At even sizes the last window reaches over the edge by itself, and nothing is copied.
    odd = [(kernel - stride) * (size % 2) for size in (W, H)]
    if any(odd):
        pictures_BCHW = functional.pad(pictures_BCHW, (0, odd[0], 0, odd[1]))
    pooled_BCHW = functional.max_pool2d(pictures_BCHW, kernel, stride, ceil_mode=True)
    pooled_BTHWC = pooled_BCHW.permute(0, 2, 3, 1).unflatten(0, (B, T))
    if time_stride == 1:
        return pooled_BTHWC
    out_BTHWC = pooled_BTHWC[:, ::2].clone()
    for offset in range(1, time):
        later = pooled_BTHWC[:, offset::2]
        held = out_BTHWC[:, : later.shape[1]]
        torch.maximum(held, later, out=held)
    return out_BTHWC


def highest_neighbour(x_BTHWC: Tensor) -> Tensor:
    """Max pool 3×3×3 of stride 1, frame by frame: a frame's numbers stay in the cache."""
    T = x_BTHWC.shape[1]
    out_BTHWC = torch.empty_like(x_BTHWC)
    for t in range(T):
        highest_BHWC, *others = x_BTHWC[:, max(t - 1, 0) : t + 2].unbind(1)
        for other_BHWC in others:
            highest_BHWC = torch.maximum(highest_BHWC, other_BHWC)
        out_BTHWC[:, t] = _highest_beside(_highest_beside(highest_BHWC, 1), 2)
    return out_BTHWC


def _highest_beside(x: Tensor, dim: int) -> Tensor:
    """The highest of each number and its two neighbours along a dimension."""
    out, others = x.clone(), x.shape[dim] - 1
    before, after = out.narrow(dim, 0, others), out.narrow(dim, 1, others)
    torch.maximum(before, x.narrow(dim, 1, others), out=before)
    torch.maximum(after, x.narrow(dim, 0, others), out=after)
    return out


def _along_channels(x_BTHWC: Tensor, weights: Weights) -> Tensor:
    return _as_pictures(x_BTHWC, weights, padding=0)


def _along_space(x_BTHWC: Tensor, weights: Weights) -> Tensor:
    return _as_pictures(x_BTHWC, weights, padding=1)


def _along_time(x_BTHWC: Tensor, weights: Weights) -> Tensor:
    B, T, H, W, C = x_BTHWC.shape
    planes_BCTP = x_BTHWC.reshape(B, T, H * W, C).permute(0, 3, 1, 2)
    out_BCTP = _convolution(planes_BCTP, weights, (1, 0))
    return out_BCTP.permute(0, 2, 3, 1).unflatten(2, (H, W))


def _as_pictures(x_BTHWC: Tensor, weights: Weights, padding: int) -> Tensor:
    B, T, H, W, C = x_BTHWC.shape
    pictures_BCHW = x_BTHWC.reshape(B * T, H, W, C).permute(0, 3, 1, 2)
    out_BCHW = _convolution(pictures_BCHW, weights, (padding, padding))
    return out_BCHW.permute(0, 2, 3, 1).unflatten(0, (B, T))


def _convolution(x_BCHW: Tensor, weights: Weights, padding: tuple[int, int]) -> Tensor:
    """2D convolution and ReLU.

    Where oneDNN is there it is asked by name: it does both in one, and on one thread PyTorch would
    leave 1×1 kernels to a loop of its own that takes twice as long. The name is PyTorch's own and
    promised to nobody, so a release may lack it.
    """
    fused = hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    if not (fused and torch.backends.mkldnn.is_available()):
        return functional.conv2d(x_BCHW, *weights, padding=padding).relu_()
    ones = (1, 1)
    return torch.ops.mkldnn._convolution_pointwise(
        x_BCHW, *weights, padding, ones, ones, 1, "relu", [], ""
    )


def _stem_weights(network: S3D, dtype: torch.dtype) -> Weights:
    """The first convolution, for colours from 0 to 255."""
    conv = network.conv1.conv1
    weight = (conv.weight.double() / 255).float()
    if network.space_to_depth:
        # [out, places in a cell, 2 cells, 4, 4] -> [out, places in both, 4, 4]
        weight = weight.transpose(1, 2).flatten(1, 2)
        return _last(weight.to(dtype)), _bias(conv, dtype)
    return weight.to(dtype, memory_format=torch.channels_last_3d), _bias(conv, dtype)


def _pointwise(convolution: Convolution, dtype: torch.dtype) -> Weights:
    conv = convolution.conv1
    return _last(conv.weight[:, :, 0].to(dtype)), _bias(conv, dtype)


def _separable(convolution: Convolution, dtype: torch.dtype) -> tuple[Weights, Weights]:
    space, time = convolution.conv1, convolution.conv2
    return (
        (_last(space.weight[:, :, 0].to(dtype)), _bias(space, dtype)),
        (_last(time.weight[:, :, :, 0].to(dtype)), _bias(time, dtype)),
    )


def _bias(conv: nn.Conv3d, dtype: torch.dtype) -> Tensor:
    assert conv.bias is not None  # the folded norm's
    return conv.bias.to(dtype)


def _last(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last)
