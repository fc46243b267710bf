"""Subtitle files read as their lines stand: no cue is lost, bent, or glued to another."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from pipeline.formats.subtitles import read_cues

WORDS = ["stir", "the", "350", "grams", "10", "-", "of flour", "<i>well</i>", "&amp;", "NOTE it"]


def clock(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


def drawn_cues(seed: int) -> list[tuple[float, float, str]]:
    """Cues whose texts are one to three lines; a line may be a number."""
    draw, cues, now = random.Random(seed), [], 0
    for _ in range(draw.randint(1, 30)):
        start = now + draw.randint(1, 5_000_000)
        now = start + draw.randint(1, 5000)
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in range(3)]
        text = "\n".join(lines[: draw.randint(1, 3)])
        cues.append((start / 1000, now / 1000, text))
    return cues


def written(cues, *, kind: str, names: str = "numbers", ends: str = "\n") -> str:
    """The cues as a literal writer writes them."""
    point, text = (".", "WEBVTT\n\n") if kind == "vtt" else (",", "")
    for number, (start, end, words) in enumerate(cues, start=1):
        name = {"numbers": f"{number}\n", "words": f"cue {number}\n", "none": ""}[names]
        times = " --> ".join(clock(round(1000 * at), point) for at in (start, end))
        text += f"{name}{times}\n{words}\n\n"
    return text.replace("\n", ends)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("kind", "names"),
    [("srt", "numbers"), ("srt", "none"), ("vtt", "numbers"), ("vtt", "words"), ("vtt", "none")],
)
def test_what_was_written_comes_back(seed, kind, names):
    cues = drawn_cues(seed)
    assert read_cues(written(cues, kind=kind, names=names), "x") == cues


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_times_are_those_of_ffmpeg(tmp_path, kind):
    cues = [(start, end, "stir it") for start, end, _ in drawn_cues(1)]
    (tmp_path / f"a.{kind}").write_text(written(cues, kind=kind))
    command = ["ffmpeg", "-v", "error", "-i", tmp_path / f"a.{kind}", "-f", "srt", "-"]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert read_cues(theirs, "x") == read_cues((tmp_path / f"a.{kind}").read_text(), "x") == cues


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("00:00:03,500 --> 00:00:05,200", (3.5, 5.2)),
        ("00:00:03.5-->00:00:05.20", (3.5, 5.2)),
        ("3.5 --> 5", (3.5, 5.0)),
        ("00:03 --> 00:05", (3.0, 5.0)),
        ("100:00:03.000 --> 100:00:05.000 align:start position:0%", (360003.0, 360005.0)),
        ("-00:00:03,000 --> -00:00:02,000", (-3.0, -2.0)),
        ("00:00:03,1000 --> 00:00:05,200", (4.0, 5.2)),
        ("00:00:03:12 --> 00:00:05:00", (None, None)),
        ("00:00:0O,500 --> 00:00:05,200", (None, None)),
        ("00:00:03,500 -->", (None, None)),
        ("mix --> bake", (None, None)),
    ],
)
@pytest.mark.parametrize("head", ["", "WEBVTT\n\n"])
def test_every_arrow_is_a_border(line, times, head, caplog):
    text = f"{head}00:00:01.000 --> 00:00:02.000\nfirst\n\n{line}\nsecond\n\n00:06.0 --> 00:07.0\nx"
    cues = [(1.0, 2.0, "first"), (*times, "second"), (6.0, 7.0, "x")]
    assert read_cues(text, "talk.srt") == cues
    said = "talk.srt: 1 lines hold no times, as line" in caplog.text
    assert said is (times == (None, None))


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        # A quantity at the end of a text, with and without numbers, a blank line, or another cue.
        ("00:01 --> 00:02\nheat to\n350\n00:02 --> 00:03\nwait", ["heat to\n350", "wait"]),
        ("00:01 --> 00:02\nheat to\n350\n\n00:02 --> 00:03\n10", ["heat to\n350", "10"]),
        ("1\n00:01 --> 00:02\nback at\n10\n", ["back at\n10"]),
        ("1\n00:01 --> 00:02\n2\n\n2\n00:02 --> 00:03\nx\n", ["2", "x"]),
        # Names of cues: without a blank line before them, of a cue without text, of none.
        ("1\n00:01 --> 00:02\nstir\n2\n00:02 --> 00:03\nfold\n", ["stir", "fold"]),
        ("1\n00:01 --> 00:02\n2\n00:02 --> 00:03\nfold\n", ["", "fold"]),
        ("1\n00:01 --> 00:02\n\n2\n00:02 --> 00:03\nfold\n", ["", "fold"]),
        ("1\n00:01 --> 00:02\nstir\n\n2\n", ["stir"]),
        ("7\n00:01 --> 00:02\nstir\n\n9\n00:02 --> 00:03\nfold\n", ["stir", "fold"]),
        # Blank lines within a text.
        (
            "1\n00:01 --> 00:02\nstir\n\nand fold\n\n2\n00:02 --> 00:03\nx",
            ["stir\n\nand fold", "x"],
        ),
        # What looks like markup of another format is text.
        ("1\n00:01 --> 00:02\nC:\\New\\hot\n", ["C:\\New\\hot"]),
        ("1\n00:01 --> 00:02\nfree<00:01.200><c> of</c>\n", ["free<c> of</c>"]),
    ],
)
def test_a_line_that_stands_alone_is_a_name_only_where_one_can_be(text, texts):
    assert [words for _, _, words in read_cues(text, "x")] == texts


def test_comments_and_styles_of_webvtt_are_not_spoken():
    text = (
        "WEBVTT - title\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nNOTE none\nto be read\n\n"
        "first cue\n00:01.000 --> 00:02.000\nNOTE this\n\nNOTE 9 is no cue\nnor is this\n\n"
        "REGION\nid:fred\n\n00:03.000 --> 00:04.000\nfold\n\nNOTE the end\n"
    )
    assert read_cues(text, "x") == [(1.0, 2.0, "NOTE this"), (3.0, 4.0, "fold")]


def test_a_mark_and_other_line_ends_change_nothing(tmp_path):
    cues = [(1.0, 2.0, "stir"), (3.0, 4.0, "fold")]
    assert read_cues("\ufeff" + written(cues, kind="srt"), "x") == cues


def test_files_without_a_time_are_refused_and_empty_ones_are_not():
    assert read_cues("", "x") == read_cues("WEBVTT\n\nNOTE none\n", "x") == []
    with pytest.raises(ValueError, match="x is not a caption file: no timed text"):
        read_cues("<!DOCTYPE html>", "x")
    with pytest.raises(ValueError, match="no line of times reads, as line 2: 'soon --> later'"):
        read_cues("1\nsoon --> later\nstir\n", "x")
