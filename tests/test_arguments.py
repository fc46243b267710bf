"""The command line of `trainer.train`: paths that it needs, and flags that it refuses."""

from __future__ import annotations

import pytest

from trainer.arguments import parse, replay_path

PATHS = ["settings", "plan", "bags", "shards", "vocabulary", "state", "output", "metrics"]
NEEDED = [f"--{name}=here/{name}" for name in PATHS]


def test_paths_come_back_and_the_rest_has_values():
    found = vars(parse(NEEDED))
    assert {name: found[name] for name in PATHS} == {name: f"here/{name}" for name in PATHS}
    assert (found["workers"], found["chunk"], found["profile"]) == (0, 0, "0:0")
    assert found["stop_at"] is None
    assert not found["rehearse"]


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_lacks_is_named(name, capsys):
    with pytest.raises(SystemExit):
        parse([flag for flag in NEEDED if not flag.startswith(f"--{name}=")])
    assert f"required: --{name}" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("0", 0), ("12", 12)])
def test_workers_are_a_number_or_auto(text, value):
    assert parse([*NEEDED, f"--workers={text}"]).workers == value


@pytest.mark.parametrize("text", ["many", "-1", "1.5", ""])
def test_workers_that_are_neither_are_refused_with_what_was_found(text, capsys):
    with pytest.raises(SystemExit):
        parse([*NEEDED, f"--workers={text}"])
    assert f"{text!r} is neither auto nor a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "lowest"),
    [
        ("chunk", 0), ("bucket-cap-mb", 1), ("save-every", 1), ("keep-checkpoints", 1),
        ("log-every", 1), ("validate-every", 0), ("stop-at", 0),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_refused_with_the_lowest_allowed(flag, lowest, capsys):
    name = flag.replace("-", "_")
    assert getattr(parse([*NEEDED, f"--{flag}={lowest}"]), name) == lowest
    for text in (str(lowest - 1), "-2", "1.5", "many", ""):
        with pytest.raises(SystemExit):
            parse([*NEEDED, f"--{flag}={text}"])
        line = f"--{flag}: {text!r} is no whole number that is at least {lowest}"
        assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "usual"),
    [
        ("bank-on-cpu", False), ("gradient-as-bucket-view", True), ("verify-shards", False),
        ("find-unused-parameters", False), ("anomaly", False),
    ],
)  # fmt: skip
def test_a_switch_is_0_or_1_and_comes_back_as_a_truth(flag, usual, capsys):
    name = flag.replace("-", "_")
    values = [getattr(parse([*NEEDED, *more]), name) for more in ([], [f"--{flag}=0"])]
    assert [*values, getattr(parse([*NEEDED, f"--{flag}=1"]), name)] == [usual, False, True]
    for text in ("2", "-1", "True", ""):
        with pytest.raises(SystemExit):
            parse([*NEEDED, f"--{flag}={text}"])
        assert f"{text!r} is neither 0 (no) nor 1 (yes)" in capsys.readouterr().err


def test_a_replay_needs_nothing_else():
    assert replay_path(["--replay", "a/dump.json"]) == "a/dump.json"
    assert replay_path([*NEEDED, "--replay=b.json"]) == "b.json"
    assert replay_path(NEEDED) is None
