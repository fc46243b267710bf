"""Values that begin with a dash, in the parser that every command has."""

from __future__ import annotations

import re

import pytest

from pipeline.formats.command_line import CommandLine
from tests.workflow_runs import ROOT


@pytest.fixture
def parser() -> CommandLine:
    """Options of each kind, and words by themselves."""
    made = CommandLine(prog="test")
    made.add_argument("words", nargs="*")
    made.add_argument("--video")
    made.add_argument("--at", type=float)
    made.add_argument("-k", type=int)
    made.add_argument("--json", action="store_true")
    return made


@pytest.mark.parametrize("video_id", ["-tCQ4tCQdWE", "--abcdefghi", "-k345678901", "-1", "-j=x"])
def test_an_id_may_begin_with_a_dash(parser, video_id):
    given = parser.parse_args(["--video", video_id, "--json", "-k", "3", "--at", "-1.5"])
    assert (given.video, given.json, given.k, given.at) == (video_id, True, 3, -1.5)
    assert parser.parse_args([f"--video={video_id}"]).video == video_id


def test_options_stay_options(parser):
    given = parser.parse_args(["--json", "-k5", "--", "--video", "-x"])
    assert (given.json, given.k, given.words) == (True, 5, ["--video", "-x"])
    assert parser.parse_args(["--video", "-", "--json"]).video == "-"


@pytest.mark.parametrize("after", [["--json"], ["-k", "3"], ["--at=3"], []])
def test_an_option_without_its_value_is_named(parser, capsys, after):
    with pytest.raises(SystemExit):
        parser.parse_args(["--video", *after])
    assert "argument --video: expected one argument" in capsys.readouterr().err


def test_a_word_by_itself_says_where_it_goes(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["--video", "-a", "-tCQ4tCQdWE"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("what is no option and begins with a dash goes behind --: -- -tCQ4tCQdWE")
    assert parser.parse_args(["--", "-tCQ4tCQdWE"]).words == ["-tCQ4tCQdWE"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--vido", "x"])
    assert "behind --" not in capsys.readouterr().err


def test_a_command_of_a_command_takes_them_too():
    made = CommandLine(prog="test")
    made.add_subparsers().add_parser("into").add_argument("--encoder")
    assert made.parse_args(["into", "--encoder", "-mine"]).encoder == "-mine"


def test_every_command_has_this_parser():
    """But for the parser that only looks for --replay among the trainer's words."""
    files = [path for room in ("pipeline", "trainer") for path in (ROOT / room).rglob("*.py")]
    plain = [file.name for file in files if re.search(r"ArgumentParser\($", file.read_text(), re.M)]
    assert plain == []
    assert sum("CommandLine(\n" in file.read_text() for file in files) > 20
