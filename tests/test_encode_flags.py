"""The command line of the encode stage: what makes no sense is refused."""

from __future__ import annotations

import pytest

from pipeline.decode_limits import USUAL_LIMITS, Limits
from pipeline.encode import main
from pipeline.encode_flags import AUTO, limits_of, parse

SHARD = ["--manifest", "m", "--settings", "s", "--output", "o", "--index", "i"]


def test_what_one_video_may_cost_is_what_the_flags_say_and_else_the_usual():
    assert limits_of(parse(SHARD)) == USUAL_LIMITS
    flags = ["--video-timeout-seconds=9", "--video-timeout-factor=2.5", "--videos-per-worker=7"]
    limits = limits_of(parse([*SHARD, *flags]))
    assert limits == Limits(video_seconds=9, factor=2.5, videos_per_worker=7)


@pytest.mark.parametrize(("text", "value"), [("auto", AUTO), ("3", 3)])
def test_a_batch_is_a_number_or_auto(text, value):
    assert parse([*SHARD, f"--batch={text}"]).batch == value


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--batch", "0"], "--batch is 0, must be at least 1"),
        (["--workers", "-1"], "--workers is -1, must be at least 0"),
        (["--threads", "0"], "--threads is 0, must be at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(extra, message):
    with pytest.raises(ValueError, match=message):
        main([*SHARD, *extra])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --manifest, --settings and --index, or --videos, or --csv"),
        (["--videos", "v.csv", "--csv", "c.csv"], "give --manifest, --settings and --index, or"),
        (["--videos", "v.csv", "--sample-rate", "0"], "--sample-rate is 0.0, must be at least"),
        (["--videos", "v.csv", "--videos-per-shard", "0"], "--videos-per-shard is 0, must be"),
    ],
)
def test_command_lines_that_make_no_sense_are_one_line(flags, message):
    with pytest.raises(ValueError, match=message):
        main([*flags, "--output", "out"])
