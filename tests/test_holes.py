"""Lost packets are counted where the bytes are damaged, and a picture that stands is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline.holes import NEAR_PACKETS, OVERHEAD_BYTES, Holes


def packet(pts, pos=None, *, stream=0, duration=40, size=500, corrupt=False):
    return SimpleNamespace(
        stream_index=stream, pts=pts, duration=duration, pos=pos, size=size, is_corrupt=corrupt
    )


def lost(packets, *, demuxer: str = "flv", damaged_before: int = -1) -> list[int]:
    """What is lost before each packet; the demuxer stumbles before one of them."""
    holes, found = Holes(0, usual_step=40, demuxer=demuxer), []
    for number, one in enumerate(packets):
        if number == damaged_before:
            holes.note_damage()
        found.append(holes.lost_before(one))
    return found


STANDING = [packet(0, 100), packet(40, 610), packet(9000, 1120), packet(9040, 1630)]


def test_a_picture_that_stands_is_no_hole():
    assert lost(STANDING) == [0, 0, 0, 0]


def test_a_gap_in_bytes_and_time_is_a_hole():
    far = 1110 + OVERHEAD_BYTES["flv"] + 500
    assert lost([*STANDING[:2], packet(400, far + 1), packet(440, far + 511)]) == [0, 0, 8, 0]
    assert lost([*STANDING[:2], packet(400, far), packet(440, far + 510)]) == [0, 0, 0, 0]
    # Bytes alone may be an index, or fonts.
    assert lost([*STANDING[:2], packet(80, far + 1)]) == [0, 0, 0]
    assert lost([*STANDING[:2], packet(400, far + 1)], demuxer="mov") == [0, 0, 0]


def test_packets_that_come_late_are_no_way_back():
    """Of a transport stream a sound that began earlier may come after a large picture."""
    room = OVERHEAD_BYTES["mpegts"]
    big = packet(40, 1000, size=3 * room)
    parts = [packet(0, 100), big, packet(0, 500, stream=1), packet(9000, 1000 + 4 * room)]
    assert lost(parts, demuxer="mpegts") == [0, 0, 0, 0]


def test_packets_of_other_streams_fill_the_bytes():
    sound = [packet(40 + k, 1110 + 5000 * k, stream=1, size=5000) for k in range(4)]
    assert lost([*STANDING[:2], *sound, packet(9000, 1110 + 20_000)])[-1] == 0
    # The hole lies between two packets of the sound, behind which the picture's come.
    sound = [packet(40, 1110, stream=1), packet(400, 20_000, stream=1), packet(400, 20_510)]
    assert lost([*STANDING[:2], *sound])[-1] == 8


@pytest.mark.parametrize("behind", range(NEAR_PACKETS + 1))
def test_where_the_demuxer_stumbles_the_next_gap_is_a_hole(behind):
    before = [packet(40 * k) for k in range(10)]
    found = lost([*before, packet(800)], demuxer="mov", damaged_before=10 - behind)
    assert found[-1] == (10 if behind < NEAR_PACKETS else 0)
    assert sum(found[:-1]) == 0


def test_a_corrupt_packet_stands_beside_a_hole():
    parts = [packet(0), packet(40, corrupt=True), packet(400), packet(440), packet(9000)]
    assert lost(parts, demuxer="mov") == [0, 0, 8, 0, 0]


def test_without_durations_the_usual_step_counts():
    parts = [packet(0, duration=0, corrupt=True), packet(400, duration=None)]
    assert lost(parts, demuxer="mov") == [0, 9]


def test_reordered_packets_and_those_without_a_time_lose_nothing():
    times = [0, 120, 40, 80, None, 240, 160, 200, 280]
    assert sum(lost([packet(pts, 100 + 510 * k) for k, pts in enumerate(times)])) == 0
