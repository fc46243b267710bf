"""Videos whose containers or streams say how to cut or to turn their pictures."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import av
from av.bitstream import BitStreamFilterContext


def set_clean_aperture(path: Path, width: int, height: int, right: int, down: int) -> None:
    """Let an mp4 show width × height pixels, their centre so far off the picture's.

    The box `clap` (ISO/IEC 14496-12, 12.1.4) goes to the end of the sample entry, and those around
    it grow; they stand behind the pictures, so that no offset changes.
    """
    data = bytearray(path.read_bytes())
    numbers = [value for top in (width, height, right, down) for value in (top, 1)]
    box = struct.pack(">I4s8i", 40, b"clap", *numbers)
    at = data.index(b"moov")
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1"):
        at = data.index(name, at)
        (size,) = struct.unpack(">I", data[at - 4 : at])
        data[at - 4 : at] = struct.pack(">I", size + len(box))
    data[at - 4 + size : at - 4 + size] = box
    path.write_bytes(data)


def filtered(source: Path, bitstream_filter: str) -> list[av.Packet]:
    """The packets of a video behind one of libav's bitstream filters."""
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        change = BitStreamFilterContext(bitstream_filter, stream)
        packets = [packet if packet.size else None for packet in container.demux(stream)]
        return [changed for packet in packets for changed in change.filter(packet)]


def remux(source: Path, path: Path, packets: Iterable[av.Packet] | None = None) -> Path:
    """Write a video's packets, or others of its kind, into another container."""
    with av.open(str(source)) as container, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(container.streams.video[0])
        for packet in container.demux(video=0) if packets is None else packets:
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    return path


def turned_on_the_way(source: Path, path: Path, turns: list[str]) -> Path:
    """A video several times over, each time with an SEI message of orientation, or ("") without.

    `turns` are options of libav's filter `h264_metadata`.
    """
    packets, start = [], 0
    for turn in turns:
        option = f"=display_orientation=insert:{turn}" if turn else ""
        part = filtered(source, f"h264_metadata{option}")
        for packet in part:
            packet.pts, packet.dts = packet.pts + start, packet.dts + start
        packets += part
        start = max(packet.pts + packet.duration for packet in part)
    return remux(source, path, packets)


def oriented(source: Path, path: Path, orientation: int) -> Path:
    """An MJPEG video whose pictures bear an Exif orientation, 1 to 8."""
    entry = struct.pack(">HHHIHxxI", 1, 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + entry
    mark = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    packets = []
    with av.open(str(source)) as container:
        for old in container.demux(video=0):
            data = bytes(old)
            packet = av.Packet(data[:2] + mark + data[2:])
            packet.pts, packet.dts, packet.duration = old.pts, old.dts, old.duration
            packet.time_base, packet.is_keyframe = old.time_base, True
            packets += [packet] if data else []
    return remux(source, path, packets)
