"""The command line of the encode stage: what makes no sense is refused."""

from __future__ import annotations

import pytest

from pipeline.encode import main


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--batch", "0"], "--batch is 0, must be at least 1"),
        (["--workers", "-1"], "--workers is -1, must be at least 0"),
        (["--threads", "0"], "--threads is 0, must be at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(extra, message):
    paths = ["--manifest", "m", "--settings", "s", "--output", "o", "--index", "i"]
    with pytest.raises(ValueError, match=message):
        main([*paths, *extra])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --manifest, --settings and --index, or --videos"),
        (["--videos", "v.csv", "--sample-rate", "0"], "--sample-rate is 0.0, must be at least"),
        (["--videos", "v.csv", "--videos-per-shard", "0"], "--videos-per-shard is 0, must be"),
    ],
)
def test_command_lines_that_make_no_sense_are_one_line(flags, message):
    with pytest.raises(ValueError, match=message):
        main([*flags, "--output", "out"])
