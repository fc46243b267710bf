"""What counts as missing: pictures that a file declares and does not have."""

from __future__ import annotations

import pytest

from pipeline.decoded import Lengths


def lengths(
    *, stream: float = 0, file: float = 0, start: float = 0, late: float = 0, reached: float = 0
) -> Lengths:
    found = Lengths(
        stream_seconds=stream, file_seconds=file, start_seconds=start, late_seconds=late
    )
    found.reach(start + reached)
    return found


@pytest.mark.parametrize(
    ("found", "decoded", "missing"),
    [
        (lengths(stream=10), 6, 0.4),
        (lengths(stream=10), 10, 0),
        (lengths(stream=10), 12, 0),
        (lengths(stream=10), 0, 1),
        # The stream's own length is believed before the file's.
        (lengths(stream=4, file=12, reached=12), 4, 0),
        # A sound track reaches the file's length, so the pictures are whole.
        (lengths(file=12, reached=12), 4, 0),
        # Nothing reaches it: the file was cut.
        (lengths(file=12, reached=6), 6, 0.5),
        (lengths(file=12, reached=6, start=100), 6, 0.5),
        (lengths(file=12, reached=6, late=2), 4, 0.6),
        (lengths(), 4, 0),
    ],
)
def test_missing_fraction(found, decoded, missing):
    assert found.missing_fraction(decoded) == pytest.approx(missing)
