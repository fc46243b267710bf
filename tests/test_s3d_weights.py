"""Weights of S3D: loaded by name, refused by name, and random ones of the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.encoders.s3d import S3D
from pipeline.encoders.s3d_weights import digest_of_state, load_state, randomize, read_state
from tests.published_s3d import published_state

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT_TOWER = {
    "text_module.word_embd.weight": torch.zeros(3, 300),
    "text_module.fc1.weight": torch.zeros(2, 300),
}


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
