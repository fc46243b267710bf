"""Say what encoding a whole videos table will cost, from a few of its videos.

Reads   the videos table, some of its videos, and the section `encode` of the settings
Writes  nothing; on stdout the hours of decoding and of the network, and the bytes of the shards,
        each with the 95 % interval that the sample leaves
Run     snakemake --cores 1 results/settings/encode.json
        python -m pipeline.tools.estimate --videos videos.csv \
            --settings results/settings/encode.json

The sample is drawn from a seed. Each of its videos is probed, and its first seconds are decoded;
the network then runs on windows of them, on this machine. --clips-per-second replaces that by a
figure measured elsewhere. Videos that cannot be used cost nothing, and count as part of the whole.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.cli import run
from pipeline.decode_limits import USUAL_LIMITS
from pipeline.decode_pool import decode_all
from pipeline.decoding import Failed, Finished, Job, Started, Window
from pipeline.formats.command_line import CommandLine
from pipeline.formats.manifest import Reason, VideoFault
from pipeline.formats.recipe import Sampling
from pipeline.formats.settings import read_settings
from pipeline.formats.shard import DTYPE
from pipeline.formats.videos import VideoEntry, read_videos
from pipeline.pixels import Geometry
from pipeline.probe import find_ffprobe, probe_video
from pipeline.settings import EncodeSettings

if TYPE_CHECKING:  # it brings torch, which --help does without
    from pipeline.encoders.interface import Encoder

SAMPLE_BYTES, VECTOR_BYTES = 3500, 32
"""What a tar and an index hold beside the numbers: of a video, and of a vector (its times)."""
KEPT_BATCHES = 4
"""Of windows, for the network to run on; the first warms it up."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one video costs; zeros when it cannot be used."""

    video_seconds: float
    clips: float
    decode_seconds: float
    """Of one core."""
    shard_bytes: float


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the network is."""

    clips_per_second: float
    cores: int
    """That it keeps busy; 0: it runs on a GPU."""
    where: str


class Sample:
    """Measures the first `seconds` of videos, and keeps the first `keep` windows for the network.

    One killable process decodes, as for the stage.
    """

    def __init__(self, sampling: Sampling, geometry: Geometry, feature_dim: int, seconds: float):
        self.sampling, self.geometry = sampling, geometry
        self.vector_bytes = feature_dim * DTYPE.itemsize + VECTOR_BYTES
        self.max_windows = max(1, round(seconds / sampling.stride_seconds))
        budget = USUAL_LIMITS.video_seconds + USUAL_LIMITS.factor * seconds
        self.limits = replace(USUAL_LIMITS, video_seconds=budget, factor=0.0)
        self.faults: Counter[str] = Counter()
        self.windows: list[np.ndarray] = []

    def measure(self, entries: list[VideoEntry], keep: int) -> list[Cost]:
        """What each video costs, those last that cannot be used; why, is counted in `faults`."""
        jobs, costs = self._jobs(entries), []
        seen: Counter[int] = Counter()
        events = decode_all(
            jobs, self.sampling, self.geometry, workers=1, waiting_windows=4, limits=self.limits
        )
        for event in events:
            match event:
                case Started():
                    seen[event.number] = 0
                case Window():
                    seen[event.number] += 1
                    if len(self.windows) < keep:
                        self.windows.append(event.pixels)
                case Finished():
                    costs.append(self._cost(jobs[event.number], event, seen[event.number]))
                case Failed():
                    self.faults[event.reason] += 1
        return costs + [Cost(0, 0, 0, 0)] * self.faults.total()

    def _jobs(self, entries: list[VideoEntry]) -> list[Job]:
        ffprobe = find_ffprobe()
        jobs: list[Job] = []
        for entry in entries:
            try:
                if not entry.path:
                    raise VideoFault(Reason.REMOVED)
                declared = probe_video(entry.path, ffprobe=ffprobe, timeout_seconds=60)
            except VideoFault as fault:
                self.faults[fault.reason] += 1
            else:
                seconds = declared.duration_seconds
                jobs.append(Job(len(jobs), entry.path, seconds, windows=self.max_windows))
        return jobs

    def _cost(self, job: Job, end: Finished, num_windows: int) -> Cost:
        # Whole videos tell their own length, the others declare it or are taken for this long.
        looked_at = seconds = end.report.end_seconds
        if num_windows == self.max_windows:
            looked_at = (num_windows - 1) * self.sampling.stride_seconds
            looked_at += self.sampling.frames / self.sampling.frame_rate
            seconds = job.declared_seconds or looked_at
        clips = self.sampling.num_vectors(round(seconds * self.sampling.frame_rate))
        return Cost(
            video_seconds=seconds,
            clips=clips,
            decode_seconds=end.busy_seconds * seconds / max(looked_at, 1e-3),
            shard_bytes=SAMPLE_BYTES + clips * self.vector_bytes,
        )


def total(costs: list[Cost], of: Callable[[Cost], float], population: int) -> tuple[float, float]:
    """The sum over a table of `population` videos, and half its 95 % interval.

    A sample without replacement: N·mean ± 1.96·N·sd·sqrt((1 - n/N) / n) (Cochran, Sampling
    Techniques, 2.6). One video leaves it open: the interval is then infinite, unless it is all.
    """
    values = [of(cost) for cost in costs]
    count, mean = len(values), sum(values) / len(values)
    if count == population:
        return mean * count, 0.0
    if count == 1:
        return mean * population, math.inf
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return (
        population * mean,
        1.96 * population * math.sqrt(variance * (1 - count / population) / count),
    )


def report(costs: list[Cost], faults: Counter, population: int, speed: Speed) -> list[str]:
    """The lines for people."""
    usable = len(costs) - sum(faults.values())
    decode, _ = total(costs, lambda cost: cost.decode_seconds, population)
    seconds, _ = total(costs, lambda cost: cost.video_seconds, population)
    decoding = f"{seconds / max(decode, 1e-9):.1f} x real time on one core"
    network = f"{speed.clips_per_second:.4g} clips/s {speed.where}"
    clips_an_hour = 3600 * speed.clips_per_second / max(1, speed.cores)
    kind = "core-hours" if speed.cores else "GPU-hours"

    def line(name: str, unit: str, of: Callable[[Cost], float], note: str = "") -> str:
        value, half = total(costs, of, population)
        spread = f"± {half / value:.0%}" if value and math.isfinite(half) else "± unknown"
        return f"{name:8} {value:12.4g} {unit:10} {spread}{note and f'  ({note})'}"

    return [
        f"{len(costs)} of {population} videos sampled: {usable} usable{told(faults, ', ')}",
        line("video", "hours", lambda cost: cost.video_seconds / 3600),
        line("clips", "", lambda cost: cost.clips),
        line("decode", "core-hours", lambda cost: cost.decode_seconds / 3600, decoding),
        line("network", kind, lambda cost: cost.clips / clips_an_hour, network),
        line("shards", "GB", lambda cost: cost.shard_bytes / 1e9),
    ]


def told(faults: Counter, before: str) -> str:
    """How often each reason, each with `before` in front."""
    return "".join(f"{before}{count} {reason}" for reason, count in sorted(faults.items()))


def network_speed(windows: list[np.ndarray], encoder: Encoder, batch: int, threads: int) -> Speed:
    """Run the encoder on batches of `windows` (again, if they are few), as the stage does."""
    from pipeline.encoders.batches import WindowBatch

    filled = WindowBatch(encoder, batch)
    began, repeated = 0.0, itertools.cycle(windows)
    for number in range(KEPT_BATCHES):
        if number == 1:
            filled.run()
            began = time.perf_counter()
        for window in itertools.islice(repeated, batch):
            filled.add(window, [])
    # A GPU may still be at work on the last batch.
    filled.run()
    spent = time.perf_counter() - began
    device = encoder.device.type
    cores = threads if device == "cpu" else 0
    where = f"on this machine's {device}, batch {batch}"
    return Speed((KEPT_BATCHES - 1) * batch / spent, cores, where)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = CommandLine(
        prog="python -m pipeline.tools.estimate",
        description="A videos table and settings in; hours and bytes of encoding it all out.",
    )
    parser.add_argument("--videos", type=Path, required=True, help="the videos table")
    parser.add_argument("--settings", type=Path, required=True, help="results/settings/encode.json")
    parser.add_argument("--sample", type=int, default=50, help="videos to look at")
    parser.add_argument("--seconds", type=float, default=30, help="of each, to decode")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--clips-per-second", type=float, help="of the GPU that will be used")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--batch", type=int, default=8, help="windows in one batch")
    parser.add_argument("--threads", type=int, default=2, help="threads of the network on a CPU")
    options = parser.parse_args(argv)
    for name in ("sample", "seconds", "clips_per_second", "batch", "threads"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, must be above 0")
    return options


def main(argv: list[str] | None = None) -> None:
    """Command line of the tool."""
    options = parse(argv)
    # Not at the top, for it takes seconds, and a wrong argument should not.
    from pipeline.encoders.interface import load_encoder
    from pipeline.encoders.machine import choose_device, use_threads

    use_threads(options.threads)
    settings = read_settings(EncodeSettings, options.settings)
    entries = read_videos(options.videos)
    if not entries:
        raise ValueError(f"{options.videos} lists no video")
    encoder = load_encoder(settings, choose_device(options.device))
    sample = Sample(settings.grid, encoder.geometry, encoder.feature_dim, options.seconds)
    chosen = random.Random(options.seed).sample(entries, min(options.sample, len(entries)))
    keep = KEPT_BATCHES * options.batch
    costs = sample.measure(chosen, keep)
    if not sample.windows:
        raise ValueError(f"none of {len(costs)} videos decodes:{told(sample.faults, ' ')}")
    if options.clips_per_second:
        speed = Speed(options.clips_per_second, 0, "as given")
    else:
        speed = network_speed(sample.windows, encoder, options.batch, options.threads)
    for line in report(costs, sample.faults, len(entries), speed):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    run(main)
