"""Small videos for the tests, drawn and written with PyAV.

A numbered frame carries its number in its pixels: a 4 × 4 board of black and white squares in the
centre of the picture, the lowest bit first. So the time of a picture can be read from the picture.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def numbered(number: int, width: int = 96, height: int = 64) -> np.ndarray:
    """The frame of a number: uint8 [height, width, 3]."""
    bits = np.array([number >> bit & 1 for bit in range(16)], dtype=np.uint8).reshape(4, 4)
    board = np.kron(bits * 215 + 20, np.ones((min(width, height) // 4,) * 2, dtype=np.uint8))
    picture = np.full((height, width, 3), 128, dtype=np.uint8)
    top, left = (height - board.shape[0]) // 2, (width - board.shape[1]) // 2
    picture[top : top + board.shape[0], left : left + board.shape[1]] = board[..., None]
    return picture


def number_of(picture: np.ndarray) -> int:
    """The number in a square picture of a numbered frame."""
    size = picture.shape[0]
    centres = (np.arange(4) * 2 + 1) * size // 8
    bits = picture[np.ix_(centres, centres)].mean(axis=-1).ravel() > 128
    return int((bits << np.arange(16)).sum())


def quadrants(width: int = 96, height: int = 64) -> np.ndarray:
    """Red, green (above), blue, white (below) quarters: every turn and flip looks different."""
    picture = np.zeros((height, width, 3), dtype=np.uint8)
    picture[: height // 2, : width // 2] = (200, 0, 0)
    picture[: height // 2, width // 2 :] = (0, 200, 0)
    picture[height // 2 :, : width // 2] = (0, 0, 200)
    picture[height // 2 :, width // 2 :] = (200, 200, 200)
    return picture


def write_video(
    path: Path,
    seconds: Iterable[float],
    *,
    draw: Callable[[int], np.ndarray] = numbered,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    rate: float = 25,
    ticks: int = 1000,
    container: str | None = None,
    audio_seconds: float = 0,
    codec_options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write frame k = draw(k) at the k-th of `seconds`, and silence from 0 to `audio_seconds`.

    The encoder's clock has `ticks` a second; `rate` is only what the file declares.
    """
    quality = {"preset": "ultrafast", "crf": "10"} if codec == "libx264" else {}
    with av.open(str(path), "w", format=container, options=container_options or {}) as output:
        stream = output.add_stream(
            codec,
            rate=Fraction(rate).limit_denominator(1001),
            options={**quality, **(codec_options or {})},
        )
        first = draw(0)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = pixels
        stream.codec_context.time_base = Fraction(1, ticks)
        sound = _add_silence(output) if audio_seconds else None
        packets = []
        for index, second in enumerate(seconds):
            frame = av.VideoFrame.from_ndarray(draw(index), format="rgb24")
            frame.time_base = Fraction(1, ticks)
            frame.pts = round(second * ticks)
            packets += stream.encode(frame)
        packets += stream.encode(None)
        if sound is not None:
            packets += _silence(sound, audio_seconds)
        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        for packet in packets:
            output.mux(packet)
    return path


def write_audio(path: Path, seconds: float, *, cover: bool = False) -> Path:
    """Write a file of silence alone, or with a cover picture."""
    with av.open(str(path), "w") as output:
        sound = _add_silence(output)
        picture = output.add_stream("mjpeg", rate=1) if cover else None
        if picture is not None:
            picture.width, picture.height, picture.pix_fmt = 64, 64, "yuvj420p"
            picture.disposition = av.stream.Disposition.attached_pic
            frame = av.VideoFrame.from_ndarray(numbered(3, 64, 64), format="rgb24")
            frame.pts = 0
            for packet in [*picture.encode(frame.reformat(format="yuvj420p")), *picture.encode()]:
                output.mux(packet)
        for packet in _silence(sound, seconds):
            output.mux(packet)
    return path


def _add_silence(output: av.container.OutputContainer) -> av.audio.stream.AudioStream:
    # AAC starts before time 0, which containers without edit lists keep.
    codec = "flac" if output.format.name == "matroska" else "aac"
    return output.add_stream(codec, rate=16000, layout="mono")


def _silence(stream: av.audio.stream.AudioStream, seconds: float) -> list[av.Packet]:
    packets = []
    for start in range(0, round(seconds * 16000), 1024):
        silence = np.zeros((1, 1024), np.int16)
        frame = av.AudioFrame.from_ndarray(silence, "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 16000, start, Fraction(1, 16000)
        packets += stream.encode(frame)
    return [*packets, *stream.encode(None)]


def steady(num_frames: int, rate: float = 25, start: float = 0) -> list[float]:
    """The times of frames at a constant rate."""
    return [start + index / rate for index in range(num_frames)]


def set_display_matrix(path: Path, matrix: tuple[int, ...]) -> None:
    """Overwrite a, b, c, d of the display matrix of an mp4's first track.

    The matrix stands 44 bytes after the name of the tkhd box (ISO/IEC 14496-12, 8.3.2).
    """
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in matrix)
    data[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


def rot(path: Path, *, bytes_changed: int, after: float, seed: int = 0) -> None:
    """Overwrite random bytes of a file behind the fraction `after` of its length."""
    random = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for where in random.integers(round(after * len(data)), len(data), bytes_changed):
        data[where] = int(random.integers(256))
    path.write_bytes(data)


def cut(path: Path, fraction: float) -> None:
    """Keep the first `fraction` of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: round(fraction * len(data))])


def command_line(
    ffmpeg: str, path: Path, chain: str, size: int, stream: str = "0:v:0"
) -> np.ndarray:
    """What the ffmpeg command line makes of a video: uint8 [num_frames, size, size, 3]."""
    command = [ffmpeg, "-v", "error", "-nostdin", "-threads", "1", "-i", f"file:{path}"]
    command += ["-map", stream, "-vf", chain, "-fps_mode", "cfr"]
    command += ["-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
    done = subprocess.run(command, check=False, capture_output=True, timeout=120)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, size, size, 3)
