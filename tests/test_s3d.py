"""S3D: names and shapes as published, numbers as slow loops give them, weights checked by name."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch

from pipeline.encoders.s3d import BLOCKS, S3D, Gating, max_pool, pad_for_stem, space_to_depth
from pipeline.encoders.s3d_weights import digest_of_state, load_state, randomize, read_state

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLISHED = {
    True: ("209cb5bf416401a198d0752b4f7545a8b31b2e3e438f345fffa3cca220ebcfe1", 532),
    False: ("05ac0d3a0777bc39f9c201da7f9af0830414f067ed83fe2e39d445f3f7151c27", 532),
}
"""By stem: the sha256 of the published network's lines "name shape", and their number."""


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


TEXT_TOWER = {
    "text_module.word_embd.weight": torch.zeros(3, 300),
    "text_module.fc1.weight": torch.zeros(2, 300),
}


@pytest.mark.parametrize("with_cells", [True, False])
def test_names_and_shapes_are_the_published_ones(with_cells):
    expected = published_shapes(with_cells=with_cells)
    found = {n: tuple(v.shape) for n, v in S3D(space_to_depth=with_cells).state_dict().items()}
    assert found == expected
    lines = sorted(f"{name} {shape}" for name, shape in found.items())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert (digest, len(lines)) == PUBLISHED[with_cells]


@pytest.mark.parametrize("with_cells", [True, False])
def test_a_published_state_dict_loads_with_its_text_tower_left_out(with_cells, tmp_path):
    state = published_state(with_cells=with_cells)
    torch.save({**state, **TEXT_TOWER}, tmp_path / "released.pth")
    network = S3D(space_to_depth=with_cells)
    load_state(network, read_state(tmp_path / "released.pth"), where="released.pth")
    assert all(torch.equal(network.state_dict()[name], state[name]) for name in state)


def test_a_checkpoint_of_a_wrapped_module_loads(tmp_path):
    state = published_state(with_cells=False)
    wrapped = {f"module.{name}": value for name, value in {**state, **TEXT_TOWER}.items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, tmp_path / "epoch3.pth.tar")
    network = S3D(space_to_depth=False)
    load_state(network, read_state(tmp_path / "epoch3.pth.tar"), where="epoch3.pth.tar")
    assert torch.equal(network.fc.weight, state["fc.weight"])


def test_names_that_differ_are_named_in_one_line():
    state = published_state(with_cells=True)
    del state["mixed_3b.conv_b0.conv1.weight"]
    state["head.weight"] = torch.zeros(1)
    state["fc.weight"] = torch.zeros(400, 1024)
    with pytest.raises(ValueError, match="does not fit s3d") as caught:
        load_state(S3D(space_to_depth=True), state, where="w.pth")
    assert str(caught.value) == (
        "w.pth does not fit s3d: missing mixed_3b.conv_b0.conv1.weight; unexpected head.weight;"
        " wrong shape fc.weight (400, 1024), expected (512, 1024)"
    )


def test_many_names_that_differ_are_counted():
    state = {"layer1.0.conv1.weight": torch.zeros(64, 3, 7, 7)}
    with pytest.raises(ValueError, match=r"missing conv1\.conv1\.weight, .* and \d+ more; unexpec"):
        load_state(S3D(space_to_depth=True), state, where="resnet.pth")


@pytest.mark.parametrize("with_cells", [True, False])
def test_weights_of_the_other_stem_say_which_key_to_set(with_cells):
    state = published_state(with_cells=not with_cells)
    wanted = str(not with_cells).lower()
    with pytest.raises(ValueError, match=f"set encode.space_to_depth to {wanted}"):
        load_state(S3D(space_to_depth=with_cells), state, where="w.pth")


def test_files_that_hold_no_state_dict_are_refused(tmp_path):
    (tmp_path / "page.pth").write_text("<html>not found</html>")
    torch.save({"words": ["a"]}, tmp_path / "words.pth")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "module.pth")
    (tmp_path / "empty.pth").write_bytes(b"")
    for name in ("page.pth", "words.pth", "module.pth", "empty.pth"):
        with pytest.raises(ValueError, match=name):
            read_state(tmp_path / name)


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


def test_random_weights_depend_on_the_seed_alone():
    digests = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(digests))
        network = S3D(space_to_depth=True)
        randomize(network, seed)
        digests.append(digest_of_state(network.state_dict()))
    assert digests[0] == digests[1] != digests[2]
    # The same on every machine; if this changes, so do the features of all who use `random`.
    assert digests[0] == "6aad870d0573062226ed7ea5c1dc9ba3efdc1bbe77bcdc20429ded0adea23b1d"


def test_the_digest_sees_names_shapes_and_bytes():
    base = {"a": torch.arange(4.0), "b": torch.zeros(1)}
    others = [
        {"a": torch.arange(4.0).reshape(2, 2), "b": torch.zeros(1)},
        {"a": torch.arange(4.0), "c": torch.zeros(1)},
        {"a": torch.arange(4.0) + np.float32(1e-7), "b": torch.zeros(1)},
    ]
    assert digest_of_state(base) == digest_of_state(dict(reversed(base.items())))
    assert digest_of_state(base) not in [digest_of_state(other) for other in others]
