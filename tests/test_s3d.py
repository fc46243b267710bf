"""S3D: names and shapes as published, and numbers as slow loops give them."""

from __future__ import annotations

import hashlib
import itertools

import pytest
import torch

from pipeline.encoders.s3d import S3D, Gating, max_pool, pad_for_stem, space_to_depth
from pipeline.encoders.s3d_weights import load_state, randomize
from tests.published_s3d import published_shapes, published_state

pytestmark = pytest.mark.usefixtures("one_thread")
PUBLISHED = {
    True: ("209cb5bf416401a198d0752b4f7545a8b31b2e3e438f345fffa3cca220ebcfe1", 532),
    False: ("05ac0d3a0777bc39f9c201da7f9af0830414f067ed83fe2e39d445f3f7151c27", 532),
}
"""By stem: the sha256 of the published network's lines "name shape", and their number."""


@pytest.mark.parametrize("with_cells", [True, False])
def test_names_and_shapes_are_the_published_ones(with_cells):
    expected = published_shapes(with_cells=with_cells)
    found = {n: tuple(v.shape) for n, v in S3D(space_to_depth=with_cells).state_dict().items()}
    assert found == expected
    lines = sorted(f"{name} {shape}" for name, shape in found.items())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert (digest, len(lines)) == PUBLISHED[with_cells]


def test_max_pool_equals_explicit_loops():
    x = torch.randn(1, 2, 5, 7, 8).relu()
    kernel, stride = (3, 3, 3), (2, 2, 2)
    pooled = max_pool(x, kernel, stride)
    # Windows start at 0, stride, ... as long as they start in the picture; outside counts as 0.
    assert pooled.shape == (1, 2, 3, 4, 4)
    for c, t, h, w in itertools.product(range(2), range(3), range(4), range(4)):
        window = x[0, c, 2 * t : 2 * t + 3, 2 * h : 2 * h + 3, 2 * w : 2 * w + 3]
        assert pooled[0, c, t, h, w] == max(0.0, float(window.max()))


def test_space_to_depth_equals_explicit_loops():
    x = torch.arange(3 * 4 * 4 * 6, dtype=torch.float32).reshape(1, 3, 4, 4, 6)
    cells = space_to_depth(x)
    assert cells.shape == (1, 24, 2, 2, 3)
    for dt, dh, dw, c in itertools.product(range(2), range(2), range(2), range(3)):
        channel = ((dt * 2 + dh) * 2 + dw) * 3 + c
        for t, h, w in itertools.product(range(2), range(2), range(3)):
            assert cells[0, channel, t, h, w] == x[0, c, 2 * t + dt, 2 * h + dh, 2 * w + dw]


def test_the_padded_stem_equals_padding_all_round_and_cutting_the_first_off():
    clips, weight = torch.randn(2, 3, 4, 8, 6), torch.randn(5, 24, 2, 4, 4)
    found = torch.nn.functional.conv3d(space_to_depth(pad_for_stem(clips)), weight)
    published = torch.nn.functional.conv3d(space_to_depth(clips), weight, padding=(1, 2, 2))
    torch.testing.assert_close(found, published[:, :, 1:, 1:, 1:])


def test_gating_equals_explicit_loops():
    gating, x = Gating(3), torch.randn(2, 3, 2, 2, 2)
    found = gating(x)
    for b, c in itertools.product(range(2), range(3)):
        mixed = sum(gating.fc.weight[c, k] * x[b, k].mean() for k in range(3)) + gating.fc.bias[c]
        torch.testing.assert_close(found[b, c], x[b, c] * torch.sigmoid(mixed))


@pytest.mark.parametrize("with_cells", [True, False])
def test_outputs_have_the_published_sizes_and_the_embedding_is_the_last_layer(with_cells):
    network = S3D(space_to_depth=with_cells).eval()
    randomize(network, 0)
    with torch.inference_mode():
        out = network(torch.rand(2, 3, 8, 34, 50))
        assert {name: tuple(value.shape) for name, value in out.items()} == {
            "mixed_5c": (2, 1024),
            "embedding": (2, 512),
        }
        torch.testing.assert_close(network.fc(out["mixed_5c"]), out["embedding"])


@pytest.mark.parametrize("with_cells", [True, False])
def test_folding_the_norms_changes_no_number(with_cells):
    network = S3D(space_to_depth=with_cells).eval()
    load_state(network, published_state(with_cells=with_cells), where="published")
    clips = torch.rand(1, 3, 4, 32, 32, dtype=torch.float64)
    with torch.inference_mode():
        before = network.double()(clips)["mixed_5c"]
        after = network.fold()(clips)["mixed_5c"]
    assert not any(isinstance(module, torch.nn.BatchNorm3d) for module in network.modules())
    assert float(before.std()) > 1e-3
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-12)
