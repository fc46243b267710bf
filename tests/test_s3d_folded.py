"""S3D as a CPU runs it: the numbers of the plain network, clip by clip."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from pipeline.encoders.s3d import POOLS, S3D, max_pool, pad_for_stem, space_to_depth
from pipeline.encoders.s3d_folded import (
    FoldedS3D,
    computes_bfloat16,
    highest_neighbour,
    overlapping_cells,
    pool,
)
from pipeline.encoders.s3d_weights import load_state
from tests.published_s3d import published_state

pytestmark = pytest.mark.usefixtures("one_thread")


def windows(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def plain_network(*, with_cells: bool) -> S3D:
    network = S3D(space_to_depth=with_cells).eval().requires_grad_(False)
    load_state(network, published_state(with_cells=with_cells), where="published")
    return network


@pytest.mark.parametrize("with_cells", [True, False])
@pytest.mark.parametrize("size", [(8, 32, 32), (4, 34, 50), (2, 66, 32), (10, 38, 36)])
def test_outputs_are_those_of_the_plain_network(with_cells, size):
    network = plain_network(with_cells=with_cells)
    folded = FoldedS3D(copy.deepcopy(network), torch.float32)
    clips = windows(2, *size, 3)
    with torch.inference_mode():
        plain = network(clips.permute(0, 4, 1, 2, 3).float() / 255)
        found = folded(clips)
    for name, expected in plain.items():
        assert float(expected.std()) > 1e-3
        assert float((found[name] - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.skipif(not computes_bfloat16(), reason="this CPU does not compute in bfloat16")
def test_bfloat16_points_the_same_way():
    network = plain_network(with_cells=True)
    clips = windows(2, 8, 64, 64, 3)
    with torch.inference_mode():
        plain = network(clips.permute(0, 4, 1, 2, 3).float() / 255)["mixed_5c"]
        rough = FoldedS3D(network, torch.bfloat16)(clips)["mixed_5c"]
    assert rough.dtype == torch.float32
    assert float(torch.cosine_similarity(rough, plain).min()) > 0.999


def test_a_clip_s_bytes_do_not_depend_on_the_size_of_its_batch():
    folded = FoldedS3D(plain_network(with_cells=True), torch.float32)
    clips = windows(3, 4, 32, 32, 3)
    with torch.inference_mode():
        together = folded(clips)["mixed_5c"]
        assert torch.equal(folded(clips[1:2])["mixed_5c"][0], together[1])


def test_overlapping_cells_turn_the_stem_into_a_2d_convolution():
    clips, weight = windows(2, 6, 8, 10, 3), torch.randn(5, 24, 2, 4, 4, dtype=torch.float64)
    plain = space_to_depth(pad_for_stem(clips.permute(0, 4, 1, 2, 3).double()))
    expected = torch.nn.functional.conv3d(plain, weight)
    cells = overlapping_cells(clips).double()
    flat = weight.transpose(1, 2).flatten(1, 2)
    found = torch.nn.functional.conv2d(cells.flatten(0, 1).permute(0, 3, 1, 2), flat)
    torch.testing.assert_close(found.unflatten(0, (2, 3)).transpose(1, 2), expected)


@pytest.mark.parametrize("layer", POOLS)
@pytest.mark.parametrize("size", [(4, 8, 8), (5, 7, 9), (1, 2, 3), (2, 9, 4)])
def test_pools_are_those_of_the_plain_network(layer, size):
    x = torch.randn(2, *size, 4).relu()
    expected = max_pool(x.permute(0, 4, 1, 2, 3), *POOLS[layer]).permute(0, 2, 3, 4, 1)
    assert torch.equal(pool(x, layer), expected)


def test_the_pool_of_stride_1_is_torch_s():
    x = torch.randn(2, 5, 6, 7, 3)
    expected = torch.nn.functional.max_pool3d(x.permute(0, 4, 1, 2, 3), 3, stride=1, padding=1)
    assert torch.equal(highest_neighbour(x), expected.permute(0, 2, 3, 4, 1))


def counted(monkeypatch, name: str) -> list[int]:
    """How often a function of `torch.nn.functional` is called from now on, in a list of one."""
    calls, function = [0], getattr(functional, name)

    def count(*arguments, **options):
        calls[0] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(functional, name, count)
    return calls


def test_a_torch_without_the_fused_convolution_gives_the_same_features(monkeypatch):
    torch.manual_seed(0)
    network = S3D(space_to_depth=True).eval()
    clips = torch.randint(0, 256, (1, 4, 32, 32, 3), dtype=torch.uint8)
    with torch.inference_mode():
        folded = FoldedS3D(network, torch.float32)
        expected = folded(clips)
        calls = counted(monkeypatch, "conv2d")
        folded(clips)
        before = calls[0]
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        found = folded(clips)
    assert calls[0] - before > before, "the fallback was not taken"
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-5)
