"""Draws the demo's videos: coloured shapes that move, one step after the other.

Reads   steps.csv (what to draw, and when) and the videos table (where the files go)
Writes  the files of the table that lie under the output folder: four are broken on purpose, and one
        that the table names is never written
Run     python -m pipeline.demo --script config/demo/steps.csv --videos config/demo/videos.csv
        --output results/demo

Letters: H, W height and width in pixels.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np

from pipeline.cli import run
from pipeline.demo_script import Step, read_script
from pipeline.formats.command_line import CommandLine
from pipeline.formats.files import whole_file, write_text
from pipeline.formats.videos import read_videos

WIDTH, HEIGHT = 144, 112
FRAME_RATE = 12
CLOSING_SECONDS = 1.0
RGB = {
    "red": (230, 30, 30),
    "green": (20, 190, 50),
    "blue": (40, 70, 255),
    "yellow": (245, 220, 20),
    "purple": (200, 40, 220),
    "white": (255, 255, 255),
}
WEB_PAGE = "<!DOCTYPE html>\n<title>404</title>\n<p>This video is no longer available.</p>\n"

logger = logging.getLogger(__name__)


def render_videos(script_path: Path, videos_path: Path, output: Path) -> int:
    """Draw every video of the table that lies under `output`; return how many were written.

    Raises:
        ValueError: the table names a video under `output` that the script does not know.
    """
    script = read_script(script_path)
    written = 0
    for video in read_videos(videos_path):
        path = Path(video.path)
        if not video.path or output not in path.parents:
            continue
        if video.video_id in script:
            draw_video(path, script[video.video_id])
        elif video.video_id in BREAKERS:
            BREAKERS[video.video_id](path, next(iter(script.values())))
        else:
            raise ValueError(f"{script_path} has no steps for the video {video.video_id!r}")
        written += 1
    return written


def draw_video(path: Path, steps: list[Step]) -> None:
    """Write an mp4 (MPEG-4 part 2, no sound) of `steps`; the same steps give the same bytes."""
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with whole_file(path) as scratch, av.open(scratch, "w", format="mp4", options=options) as file:
        stream = file.add_stream("mpeg4", rate=FRAME_RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.bit_rate = 400_000
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        for picture in draw_frames(steps):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())


def draw_frames(steps: list[Step]) -> Iterator[np.ndarray]:
    """Yield the frames of a video as uint8 [H, W, 3]; between steps only the background shows."""
    rng = random.Random(steps[0].video_id)
    background = np.full((HEIGHT, WIDTH, 3), rng.randint(20, 60), np.uint8)
    places = {step: (rng.uniform(-0.1, 0.1), rng.uniform(-0.1, 0.1)) for step in steps}
    for index in range(round((steps[-1].end + CLOSING_SECONDS) * FRAME_RATE)):
        now = index / FRAME_RATE
        picture = background.copy()
        for step in steps:
            if step.start <= now < step.end:
                progress = (now - step.start) / (step.end - step.start)
                picture[_mask(step, progress, *places[step])] = RGB[step.colour]
        yield picture


def _mask(step: Step, progress: float, x: float, y: float) -> np.ndarray:
    """Pixels of the step's shape at `progress` in [0, 1): bool [H, W].

    Lengths are in halves of the picture's height, from its centre; angles in radians.
    """
    angle, size = 0.0, 0.45
    if step.motion == "slides left":
        x = 0.9 - 1.8 * progress
    elif step.motion == "jumps up":
        y = 0.45 - 0.9 * abs(math.sin(3 * math.pi * progress))
    elif step.motion == "spins around":
        angle = 4 * math.pi * progress
    elif step.motion == "grows":
        size = 0.1 + 0.9 * progress
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    across = ((columns + 0.5) / HEIGHT * 2 - WIDTH / HEIGHT - x) / size
    down = ((rows + 0.5) / HEIGHT * 2 - 1 - y) / size
    u = math.cos(angle) * across + math.sin(angle) * down
    v = math.cos(angle) * down - math.sin(angle) * across
    return _inside(step.shape, u, v)


def _inside(shape: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Whether points, in units of the shape's radius, lie in it; v points down."""
    if shape == "circle":
        return u**2 + v**2 < 1
    if shape == "ring":
        return (u**2 + v**2 < 1) & (u**2 + v**2 > 0.4)
    if shape == "cross":
        return (np.minimum(abs(u), abs(v)) < 0.28) & (np.maximum(abs(u), abs(v)) < 1)
    if shape == "triangle":
        return (v < 0.7) & (abs(u) * 1.5 < v + 1)
    raise ValueError(f"no such shape: {shape!r}")


def _write_empty(path: Path, steps: list[Step]) -> None:
    write_text(path, "")


def _write_truncated(path: Path, steps: list[Step]) -> None:
    """The first quarter of a file whose header promises all of it, as a broken download leaves."""
    draw_video(path, steps)
    whole = path.read_bytes()
    with whole_file(path) as scratch:
        scratch.write_bytes(whole[: len(whole) // 4])


def _write_audio(path: Path, steps: list[Step]) -> None:
    """Two seconds of a tone, and no picture."""
    rate = 16_000
    options = {"fflags": "+bitexact"}
    with whole_file(path) as scratch, av.open(scratch, "w", format="mp4", options=options) as file:
        stream = file.add_stream("aac", rate=rate, layout="mono")
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        tone = 0.2 * np.sin(2 * math.pi * 440 * np.arange(2 * rate) / rate)
        frame = av.AudioFrame.from_ndarray(
            tone.astype(np.float32)[None], format="fltp", layout="mono"
        )
        frame.sample_rate = rate
        file.mux(stream.encode(frame))
        file.mux(stream.encode())


def _write_web_page(path: Path, steps: list[Step]) -> None:
    write_text(path, WEB_PAGE)


BREAKERS = {
    "broken-empty": _write_empty,
    "broken-truncated": _write_truncated,
    "broken-audio": _write_audio,
    "broken-webpage": _write_web_page,
}


def main(argv: list[str] | None = None) -> None:
    """Draw the demo's videos."""
    parser = CommandLine(
        prog="python -m pipeline.demo",
        description="The demo's script and videos table in, its video files out.",
    )
    parser.add_argument("--script", type=Path, required=True, help="steps.csv: what to draw")
    parser.add_argument("--videos", type=Path, required=True, help="the videos table")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder; paths outside it are left alone"
    )
    options = parser.parse_args(argv)
    written = render_videos(options.script, options.videos, options.output)
    logger.info("wrote %d videos under %s", written, options.output)


if __name__ == "__main__":
    run(main)
