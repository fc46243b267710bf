"""How any network becomes an encoder: a description of what it eats, and the adapter that feeds it.

A factory is a function of the settings that returns a `Network`. Name it in the config as
`encoder: package.module:factory`; the package must be importable where the job runs.

    def frames_mean(settings: EncodeSettings) -> Network:
        return Network(module=my_2d_network(), layout="frames", frame_size=224, resize=256,
                       mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), feature_dim=2048)

Shapes: B windows, T frames, H and W pixels, C colours, F features.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.pixels import Geometry
from pipeline.settings import EncodeSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

LAYOUTS = {
    "BCTHW": (0, 4, 1, 2, 3),
    "BTCHW": (0, 1, 4, 2, 3),
    "BTHWC": (0, 1, 2, 3, 4),
    "frames": (0, 1, 4, 2, 3),
}
"""What the network sees. `frames`: pictures [B·T, C, H, W], each on its own; their features are
averaged over the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and what it takes to feed it."""

    module: nn.Module
    """From a tensor of `layout` to [B, F] features (for `frames`: [B·T, F]); put into eval mode."""
    frame_size: int
    """Pixels on a side of the picture; must be encode.frame_size."""
    feature_dim: int
    """F."""
    frames: int | None = None
    """Frames of one window; None: any number."""
    resize: tuple[int, int] | int | None = None
    """As in `pixels.Geometry`: None: cut the centre square, then scale; a number: scale the short
    side to it, then cut the centre; (height, width): scale to that, then cut the centre."""
    layout: str = "BCTHW"
    """One of `LAYOUTS`."""
    highest: float = 1.0
    """Colours are numbers from 0 to this: 1 or 255."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Taken off each colour, red first..."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """...before it is divided by this."""
    colours: str = "RGB"
    """`RGB`, or `BGR`: the order in which the network sees them."""
    left_out: tuple[str, ...] = ()
    """Names in a file of weights that begin like this belong to other parts."""

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r}, allowed: {', '.join(LAYOUTS)}")
        if self.colours not in ("RGB", "BGR"):
            raise ValueError(f"colours {self.colours!r}, allowed: RGB, BGR")

    def check(self, settings: EncodeSettings) -> None:
        """Refuse settings that do not fit the network."""
        for key, wanted, found in (
            ("frame_size", self.frame_size, settings.frame_size),
            ("sampling.frames", self.frames, settings.grid.frames),
        ):
            if wanted is not None and wanted != found:
                raise ValueError(
                    f"encode.{key} is {found}, but {settings.encoder} takes {wanted}: set it so"
                )


class NetworkEncoder:
    """An `interface.Encoder` around a `Network`."""

    def __init__(
        self,
        network: Network,
        settings: EncodeSettings,
        device: torch.device,
        *,
        weights_sha256: str,
        compiled: bool = False,
    ):
        self.name, self.weights_sha256 = settings.encoder, weights_sha256
        self.feature_dim = network.feature_dim
        self.geometry = Geometry(frame_size=network.frame_size, resize=network.resize)
        self.device, self.dtype = device, DTYPES[settings.precision]
        self.network = network
        module = prepared(network.module, device, self.dtype)
        self.module = torch.compile(module) if compiled else module
        step = 1 if network.colours == "RGB" else -1
        self.mean_C = torch.tensor(network.mean[::step]).to(device)
        self.std_C = torch.tensor(network.std[::step]).to(device)

    @torch.inference_mode()
    def __call__(self, windows_BTHWC: Tensor) -> Tensor:
        """RGB, uint8 [B, frames, H, W, 3] -> float32 [B, F]."""
        B, T = windows_BTHWC.shape[:2]
        with arithmetic(self.device, self.dtype):
            features = self.module(self._input(windows_BTHWC))
        expected = (B * T if self.network.layout == "frames" else B, self.feature_dim)
        if tuple(features.shape) != expected:
            raise ValueError(
                f"{self.name} gives features of shape {tuple(features.shape)} for a batch of {B}"
                f" windows, expected {expected}"
            )
        features = features.float()
        return features.unflatten(0, (B, T)).mean(dim=1) if expected[0] != B else features

    def _input(self, windows_BTHWC: Tensor) -> Tensor:
        network = self.network
        x_BTHWC = windows_BTHWC.to(self.device).float()
        if network.highest != 255:
            x_BTHWC *= network.highest / 255
        if network.colours == "BGR":
            x_BTHWC = x_BTHWC.flip(-1)
        x_BTHWC = (x_BTHWC - self.mean_C) / self.std_C
        x = x_BTHWC.permute(LAYOUTS[network.layout])
        x = x.flatten(0, 1) if network.layout == "frames" else x
        return x if self.device.type == "cuda" else x.to(self.dtype)


def prepared(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """`module` for inference: frozen, with colours last in memory where its layers know that.

    On a CPU it is cast; on a GPU autocast chooses what is computed in bfloat16.
    """
    module = module.eval().requires_grad_(False)
    module = module.to(device, torch.float32 if device.type == "cuda" else dtype)
    if any(isinstance(part, nn.Conv3d) for part in module.modules()):
        return module.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    if any(isinstance(part, nn.Conv2d) for part in module.modules()):
        return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


@contextmanager
def arithmetic(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """How numbers are computed on a device: the same ones each time, and float32 as such.

    On GPUs float32 convolutions would be TF32 (10 bits), by whichever algorithm is fastest.
    """
    mixed = device.type == "cuda" and dtype != torch.float32
    with (
        torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed),
    ):
        yield
