"""A step that was not finite, done again from what the run left: the first bad tensor is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.formats.files import read_json, write_json
from tests.synthetic_bags import Results, make_results, write_settings
from trainer.replay import replay
from trainer.train import main


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> tuple[Results, str]:
    """A run whose weights are so large that its loss is not finite."""
    root = tmp_path_factory.mktemp("broken")
    results = make_results(root)
    write_settings(results, epochs=1, normalize=False, temperature=0.05)
    main(results.train_arguments(validate_every=0))
    content = torch.load(root / "train/model.pt", weights_only=True)
    content["state"]["video.project.weight"] *= 1e20
    content["state"]["text.fc2.weight"] *= 1e20
    torch.save(content, root / "big.pt")
    write_settings(results, normalize=False, temperature=0.05, init_from=str(root / "big.pt"))
    with pytest.raises(ValueError, match="step 0: ") as caught:
        main(results.train_arguments(state=root / "second"))
    return results, str(caught.value)


def dump_of(broken) -> Path:
    results, line = broken
    path = next((results.root / "second").glob("state-*/not-finite-*.json"))
    assert f"python -m trainer.train --replay {path}" in line
    return path


def test_a_replay_names_the_first_tensor_that_is_not_finite(broken, capsys):
    path = dump_of(broken)
    main(["--replay", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step 0: ")
    assert lines[1].startswith("as it was (fp32): the ")
    assert lines[2].startswith("in fp32 at temperature 1: the ")
    assert lines[3] == "bag files: within their bounds"
    assert lines[4].startswith("conclusion: the activations overflow even so")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("video.project.weight", float("nan"), "the weight video.project.weight"),
        ("text.fc1.bias", 3e38, "the output of text.fc2"),
    ],
)
def test_a_replay_tells_weights_from_what_they_give(broken, tmp_path, name, value, found):
    dump = read_json(dump_of(broken))
    state = torch.load(dump_of(broken).with_name(dump["weights"]), weights_only=True)
    state[name].fill_(value)
    torch.save(state, tmp_path / dump["weights"])
    write_json(tmp_path / "dump.json", dump)
    assert replay(tmp_path / "dump.json").splitlines()[1] == f"as it was (fp32): {found}"


def test_a_replay_without_its_files_is_one_line(tmp_path):
    write_json(tmp_path / "no.json", {"step": 1})
    with pytest.raises(ValueError, match="is no dump of a step"):
        replay(tmp_path / "no.json")
