"""S3D as an encoder: a centre square, colours in [0, 1], no mean and standard deviation.

Shapes: B windows, F features, H and W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.encoders.network import DTYPES, Network, arithmetic, prepared
from pipeline.encoders.s3d import S3D
from pipeline.encoders.s3d_folded import FoldedS3D, computes_bfloat16
from pipeline.encoders.s3d_weights import TEXT_TOWER, randomize
from pipeline.pixels import Geometry
from pipeline.settings import FEATURE_DIMS, EncodeSettings


def s3d(settings: EncodeSettings) -> Network:
    """S3D with the stem of the settings; weights are drawn only where no file will bring them."""
    network = S3D(space_to_depth=settings.space_to_depth)
    if settings.weights == "random":
        randomize(network, settings.seed)
    return Network(
        module=network,
        frame_size=settings.frame_size,
        feature_dim=FEATURE_DIMS[settings.output],
        left_out=(TEXT_TOWER,),
    )


class S3DEncoder:
    """An `interface.Encoder`; on a CPU in the form that a CPU runs fastest."""

    name = "s3d"

    def __init__(
        self,
        network: Network,
        settings: EncodeSettings,
        device: torch.device,
        *,
        weights_sha256: str,
        compiled: bool = False,
    ):
        """Take over the network: it is folded and moved, and no longer loads a state dict.

        Raises:
            ValueError: a precision that the CPU lacks.
        """
        self.weights_sha256 = weights_sha256
        self.output, self.feature_dim = settings.output, network.feature_dim
        self.geometry = Geometry(frame_size=settings.frame_size, resize=None)
        self.device, self.dtype = device, DTYPES[settings.precision]
        plain = network.module.eval().requires_grad_(False)
        assert isinstance(plain, S3D)
        if device.type == "cpu":
            if self.dtype == torch.bfloat16 and not computes_bfloat16():
                raise ValueError(
                    "encode.precision is bfloat16, which this CPU does not compute (it has no"
                    " AVX-512): set float32, or encode on another machine"
                )
            module: nn.Module = FoldedS3D(plain, self.dtype)
        else:
            module = prepared(plain.fold(), device, self.dtype)
        # The CPU's form has nothing left to fuse, and one shape for each of its layers.
        self.module = torch.compile(module) if compiled and device.type == "cuda" else module

    @torch.inference_mode()
    def __call__(self, windows_BTHWC: Tensor) -> Tensor:
        """RGB, uint8 [B, frames, H, W, 3] -> float32 [B, F]."""
        windows_BTHWC = windows_BTHWC.to(self.device)
        if self.device.type == "cpu":
            return self.module(windows_BTHWC)[self.output]
        # A permuted view of B,T,H,W,C is channels_last_3d already: nothing is copied.
        clips_BCTHW = windows_BTHWC.permute(0, 4, 1, 2, 3).float() / 255
        with arithmetic(self.device, self.dtype):
            return self.module(clips_BCTHW)[self.output].float()
