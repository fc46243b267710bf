"""What Matroska's own elements tell where libav, or PyAV, keeps it to itself (RFC 8794, RFC 9559).

How far a file should reach shows whether it is whole. And how many pixels a container cuts off its
pictures (MP4's `clap` box, Matroska's `PixelCrop`), by which the ffmpeg command line crops since
7.1: libav keeps that in a place of the stream that PyAV does not show, but writes it into the head
of a new Matroska file, whatever container it was read from.
"""

from __future__ import annotations

import io
from pathlib import Path

import av
import av.video.stream

from pipeline.pixels import Crop

_SEGMENT = 0x18538067
_VIDEO = (_SEGMENT, 0x1654AE6B, 0xAE, 0xE0)
"""Segment, Tracks, TrackEntry, Video."""
_PIXEL_CROP = (0x54CC, 0x54BB, 0x54DD, 0x54AA)
"""Left, top, right, bottom."""


def container_crop(stream: av.video.stream.VideoStream) -> Crop:
    """What the container of a stream cuts off; nothing where Matroska does not know the codec."""
    head = io.BytesIO()
    try:
        with av.open(head, "w", format="matroska") as output:
            output.add_stream_from_template(stream, opaque=True)
            output.start_encoding()
    except (av.FFmpegError, ValueError):
        return Crop()
    video = head.getvalue()
    for name in _VIDEO:
        video = _elements(video).get(name, b"")
    cut = _elements(video)
    return Crop(*(int.from_bytes(cut.get(name, b"")) for name in _PIXEL_CROP))


def segment_end(path: Path) -> int | None:
    """The byte at which a Matroska file should end; None when it does not say so."""
    with open(path, "rb") as file:
        data = file.read(4096)
    at = 0
    while at < len(data):
        name, size, body = _head(data, at)
        if name == _SEGMENT:
            unknown = size == (1 << 7 * (body - at - 4)) - 1
            return None if unknown else body + size
        at = body + size
    return None


def _elements(data: bytes) -> dict[int, bytes]:
    """The contents of elements that follow one another, by their ids."""
    found, at = {}, 0
    while at < len(data):
        name, size, body = _head(data, at)
        found[name] = data[body : body + size]
        at = body + size
    return found


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """An element's id, its size, and where its contents begin."""
    middle = at + _width(data, at)
    body = middle + _width(data, middle)
    size = int.from_bytes(data[middle:body]) & (1 << 7 * (body - middle)) - 1
    return int.from_bytes(data[at:middle]), size, body


def _width(data: bytes, at: int) -> int:
    """The bytes of a number: zeros before its first bit count the others."""
    return 9 - data[at].bit_length() if at < len(data) else 1
