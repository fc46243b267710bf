"""Weights for S3D: a state dict, checked name by name and shape by shape, or drawn from a seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.encoders.s3d import BLOCKS, S3D, stem_channels
from pipeline.formats.tensors import read_tensors

TEXT_TOWER = "text_module."
WRAPPER = "module."

State = dict[str, Tensor]


def read_state(path: str | Path) -> State:
    """Read a state dict, also one under "state_dict" whose names begin with "module.".

    Raises:
        ValueError: the file holds no state dict.
    """
    state = read_tensors(path)
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} holds no state dict (parameter names with their tensors)")
    return {str(name).removeprefix(WRAPPER): tensor for name, tensor in state.items()}


def load_state(
    network: nn.Module,
    state: State,
    *,
    where: str,
    encoder: str = "s3d",
    left_out: tuple[str, ...] = (TEXT_TOWER,),
) -> None:
    """Load `state` into `network`; every name and shape must fit, but for what is left out.

    Raises:
        ValueError: one line that names the first names that differ.
    """
    expected = network.state_dict()
    state = {name: value for name, value in state.items() if not name.startswith(tuple(left_out))}
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    misshapen = [
        f"{name} {tuple(state[name].shape)}, expected {tuple(value.shape)}"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "wrong shape": misshapen}
    if any(problems.values()):
        listed = "; ".join(_first(kind, names) for kind, names in problems.items() if names)
        raise ValueError(f"{where} does not fit {encoder}: {listed}{_stem_hint(network, state)}")
    network.load_state_dict(state, strict=True)


def _first(kind: str, names: list[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{kind} {', '.join(names[:limit])}{more}"


def _stem_hint(network: nn.Module, state: State) -> str:
    """Say so when the weights are those of S3D's other stem."""
    if not isinstance(network, S3D):
        return ""
    stem = state.get("conv1.conv1.weight")
    other = stem_channels(space_to_depth=not network.space_to_depth)
    if stem is None or stem.ndim != 5 or stem.shape[1] != other:
        return ""
    return f" (set encode.space_to_depth to {str(not network.space_to_depth).lower()})"


def digest_of_state(state: State) -> str:
    """The hex sha256 of a state dict: names in order, each with its type, shape and bytes."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = state[name].contiguous().numpy()
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def randomize(network: S3D, seed: int) -> None:
    """Give `network` the random weights of `seed`, which keep numbers near unit scale.

    Drawn with He et al.'s bound (arXiv 1502.01852), which keeps the mean square through convolution
    and ReLU; a gate, about one half, is made up for by a gain of two before it. Without the gains
    features are near 1e-4, which float16 cannot hold. The norms stay at mean 0 and variance 1: with
    statistics of some clips, other clips come out a hundred times as large. Every machine draws the
    same bytes: the generator scales integers.
    """
    generator = np.random.default_rng(seed)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv3d):
            _draw(module.weight, 6, generator)
        elif isinstance(module, nn.Linear):
            # Half as wide for gates, to stay near one half; no ReLU follows the last layer.
            _draw(module.weight, 1.5 if "gating" in name else 3, generator)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm3d):
            module.reset_parameters()
    for norm in _norms_before_gates(network):
        nn.init.constant_(norm.get_parameter("weight"), 2)


def _draw(weight: Tensor, scale: float, generator: np.random.Generator) -> None:
    """Fill `weight` from the uniform distribution of variance scale / (3 · fan-in)."""
    bound = math.sqrt(scale / math.prod(weight.shape[1:]))
    drawn = generator.uniform(-bound, bound, size=tuple(weight.shape))
    with torch.no_grad():
        weight.copy_(torch.from_numpy(drawn))


def _norms_before_gates(network: S3D) -> Iterator[nn.Module]:
    yield network.conv_2c.bn2
    for name in BLOCKS:
        for norm in ("conv_b0.bn1", "conv_b1_b.bn2", "conv_b2_b.bn2", "conv_b3_b.bn1"):
            yield network.get_submodule(f"{name}.{norm}")
