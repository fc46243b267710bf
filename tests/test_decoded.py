"""What counts as missing: pictures that a file declares and does not have."""

from __future__ import annotations

import pytest

from pipeline.decoded import Lengths


def lengths(
    *, own: float = 0, tagged: float = 0, file: float = 0, zero: float = 0, reached: float = 0
) -> Lengths:
    return Lengths(
        stream_seconds=own,
        stream_start=zero,
        tagged_end=tagged,
        file_seconds=file,
        zero=zero,
        start=zero,
        first=zero,
        reached=zero + reached,
    )


@pytest.mark.parametrize(
    ("found", "decoded", "missing"),
    [
        (lengths(own=10), 6, 0.4),
        (lengths(own=10), 10, 0),
        (lengths(own=10), 12, 0),
        (lengths(own=10), 0, 1),
        (lengths(tagged=10), 6, 0.4),
        # The stream's own length is believed before the file's.
        (lengths(own=4, file=12, reached=12), 4, 0),
        (lengths(tagged=4, file=12, reached=6), 4, 0),
        # A sound track reaches the file's length, so the pictures are whole.
        (lengths(file=12, reached=12), 4, 0),
        # Nothing reaches it: the file was cut.
        (lengths(file=12, reached=6), 6, 0.5),
        (lengths(file=12, reached=6, zero=100), 6, 0.5),
        (lengths(), 4, 0),
    ],
)
def test_missing_fraction(found, decoded, missing):
    assert found.missing_fraction(decoded) == pytest.approx(missing)


@pytest.mark.parametrize(
    ("found", "decoded", "missing_seconds"),
    [
        (lengths(tagged=10, file=10, reached=10), 4, 0),
        (lengths(tagged=10, file=10, reached=10), 1, 3),
        # libav saw no picture, and gave the stream the length of the file.
        (lengths(own=10, file=10, reached=10), 4, 0),
        (lengths(own=10, file=10, reached=7), 1, 3),
        (lengths(file=10, reached=7), 1, 3),
    ],
)
def test_before_a_late_start_nothing_is_missing(found, decoded, missing_seconds):
    found.first = 6.0
    whole = 6 + decoded + missing_seconds
    fraction = found.missing_fraction(decoded)
    assert fraction == pytest.approx(missing_seconds / whole)


@pytest.mark.parametrize(
    ("own", "first", "discarded", "length"),
    [(3, 3, 1, 2), (5, 3, 3.2, 2), (4.9, 3, 2.9, 2), (3, 3, 0, 3), (2, 0, 1, 2)],
)
def test_an_edit_list_shows_a_part_behind_an_empty_edit(own, first, discarded, length):
    found = lengths(own=own)
    found.first = found.stream_start = first
    found.discarded_seconds = discarded
    assert found.missing_fraction(length) == pytest.approx(0)
    assert found.missing_fraction(length / 2) > 0.1
