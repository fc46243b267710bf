"""Whatever ffprobe prints, it becomes facts that a manifest can hold, or a named fault.

The answers below are of the shape that ffprobe 4.1 to 8.0 give: numbers as text, `N/A`, fractions,
rotation as a tag or as side data, covers, streams of no type.
"""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.manifest import (
    SCHEMA,
    ManifestRow,
    Reason,
    VideoFault,
    read_manifest,
    write_manifest,
)
from pipeline.probe import Probe, clock_seconds, number, read_answer
from tests.fuzzing import bounded_memory, damaged, replaced

VIDEO = {
    "index": 0, "codec_name": "h264", "codec_type": "video", "width": 640, "height": 360,
    "pix_fmt": "yuv420p", "r_frame_rate": "30000/1001", "avg_frame_rate": "30000/1001",
    "start_time": "0.000000", "duration": "12.345000", "nb_frames": "370", "bit_rate": "N/A",
    "disposition": {"default": 1, "attached_pic": 0}, "tags": {"rotate": "90"},
    "side_data_list": [{"side_data_type": "Display Matrix", "rotation": -90}],
}  # fmt: skip
AUDIO = {"index": 1, "codec_name": "aac", "codec_type": "audio", "disposition": {"default": 1}}
MKV = {
    "index": 0, "codec_name": "vp9", "codec_type": "video", "width": 64, "height": 48,
    "avg_frame_rate": "25/1", "r_frame_rate": "0/0", "tags": {"DURATION": "00:01:02.500000000"},
}  # fmt: skip
COVER = {"index": 2, "codec_type": "video", "disposition": {"attached_pic": 1}}
FORMAT = {"format_name": "mov,mp4", "start_time": "-0.021", "duration": "12.4", "size": "1000"}
ANSWERS = [
    {"programs": [], "stream_groups": [], "streams": [VIDEO, AUDIO], "format": FORMAT},
    {"streams": [AUDIO, MKV | {"index": 3}, COVER], "format": {"duration": "N/A"}},
    {"streams": [COVER, AUDIO], "format": FORMAT},
    {"streams": [{"index": 0}]},
    {},
]
TEXTS = [json.dumps(answer, indent=4).encode() for answer in ANSWERS]
PLACES = [
    b'"30000/1001"',
    b"640",
    b'"12.345000"',
    b'"N/A"',
    b"0",
    b"1",
    b'"h264"',
    b"{",
    b"[",
    b"-90",
]
HOSTILE = [
    b'"N/A"', b"null", b"NaN", b"-Infinity", b"[]", b"{}", b"true", b'""', b'"0/0"', b'"1/0"',
    b'"nan"', b'"inf"', b'"1e400"', b"9" * 400, b"9" * 5000, b'"-9223372036854775809"', b'"1/1/1"',
    b'"\\ud800"', b'"\\u0000"', b'"99:99:99999999999999999999"', b"[" * 2000, b'"_1"',
]  # fmt: skip
odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just([])


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """An answer of which keys are missing, or have values of another type."""
    answer = json.loads(json.dumps(draw(st.sampled_from(ANSWERS[:3]))))
    for _ in range(draw(st.integers(1, 4))):
        section = draw(st.sampled_from([answer, *sections_of(answer)]))
        if section:
            key = draw(st.sampled_from(sorted(section)))
            if draw(st.booleans()):
                section[key] = draw(odd)
            else:
                del section[key]
    return json.dumps(answer).encode()


def sections_of(value: object) -> list[dict]:
    """All objects within a JSON value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict) else []
    return own + [section for one in inner for section in sections_of(one)]


@given(
    answer=changed() | damaged(TEXTS) | replaced(TEXTS, PLACES, HOSTILE) | st.binary(max_size=99)
)
def test_any_answer_is_facts_or_a_named_fault(tmp_path_factory, answer):
    found = facts_or_fault(answer)
    if isinstance(found, Probe):
        check_storable(found, tmp_path_factory.getbasetemp() / "probed.parquet")
    else:
        assert found.reason in (Reason.UNREADABLE, Reason.NO_VIDEO_STREAM)
        assert "\n" not in found.message
        assert len(found.message) < 500


def facts_or_fault(answer: bytes) -> Probe | VideoFault:
    """Anything else that is raised is a bug."""
    try:
        with bounded_memory():
            return read_answer(answer)
    except VideoFault as fault:
        return fault


def check_storable(probe: Probe, path) -> None:
    """A manifest holds the facts, and says the same of them."""
    assert probe.rotation in (0, 90, 180, 270)
    assert 0 <= probe.duration_seconds < math.inf
    facts = {name: getattr(probe, name) for name in SCHEMA if hasattr(probe, name)}
    row = ManifestRow(
        video_id="a", path="a.mp4", status="accepted", reason="", error_message="",
        size_bytes=1, mtime_ns=1, **facts,
    )  # fmt: skip
    write_manifest(path, [row])
    assert read_manifest(path) == [row]


@given(odd | st.text() | st.integers(-(10**500), 10**500))
def test_numbers_are_finite(text):
    assert abs(number(text)) < 1e12
    assert math.isfinite(clock_seconds(text))
