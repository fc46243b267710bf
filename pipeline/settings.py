"""The settings of the data stages: one frozen class per config section, without defaults.

Types, ranges and unknown keys are checked by `workflow/schemas/config.schema.yaml` too; here stand
the relations between keys, and what protects a stage that is run by hand. The rule that freezes a
section checks it with `python -m pipeline.settings SECTION FILE`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.cli import run
from pipeline.formats.recipe import PRESETS, Sampling
from pipeline.formats.settings import check_section, settings_from

OUTPUTS = {"s3d": ("mixed_5c", "embedding"), "c3d": ("fc6",)}
"""The encoders that come with Bagpipe, and what each can give."""
FEATURE_DIMS = {"mixed_5c": 1024, "embedding": 512}
"""Numbers of a vector, by S3D's output."""


def _one_of(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed: {', '.join(map(repr, allowed))}")


def _at_least(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise ValueError(f"{name} is {value!r}, must be at least {low}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What each shard holds."""

    videos: str
    """The videos table (CSV or parquet: video_id,path[,split])."""
    captions: str
    """A folder with a file for each video, or one table or JSON file for all."""
    videos_per_shard: int
    """Rows of the videos table in one shard."""

    def __post_init__(self) -> None:
        _at_least("videos_per_shard", self.videos_per_shard, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """Which videos are accepted."""

    min_seconds: float
    """Shorter declared durations are rejected."""
    max_seconds: float
    """Longer declared durations are rejected."""
    timeout_seconds: float
    """How long ffprobe may take for one file."""
    deny_list: str | None
    """A file with a video id on each line (or a CSV with a video_id column) to reject, or null."""

    def __post_init__(self) -> None:
        _at_least("min_seconds", self.min_seconds, 0)
        _at_least("max_seconds", self.max_seconds, self.min_seconds)
        _at_least("timeout_seconds", self.timeout_seconds, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionsSettings:
    """How captions are read and cleaned."""

    unit: str
    """Unit of the times in tables and JSON: `seconds` or `milliseconds`."""
    offset_seconds: float
    """Added to every time; positive when captions run early."""
    mend_rolling: bool
    """Undo rolling ASR captions, in which each line repeats the one before."""
    longest_seconds: float
    """A caption without an end lasts until the next, and at most so long."""
    centre_seconds: float
    """Length of a caption of which only the middle is known (HTM-AA's `timestamp`)."""
    min_score: float | None
    """Drop texts that their source scores lower (HowToCaption), or null."""

    def __post_init__(self) -> None:
        _one_of("unit", self.unit, ("seconds", "milliseconds"))
        _at_least("longest_seconds", self.longest_seconds, 0.1)
        _at_least("centre_seconds", self.centre_seconds, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeSettings:
    """How videos become features."""

    encoder: str
    """`s3d`, `c3d`, `torchvision:NAME`, or the `package.module:factory` of any other network."""
    weights: str
    """`random`, or the path of a state dict."""
    weights_sha256: str | None
    """Refuse weights whose file has another sha256; null: any."""
    seed: int
    """Of the random weights."""
    space_to_depth: bool
    """S3D's stem: true for the released s3d_howto100m.pth, false for MIL-NCE_HowTo100M's own."""
    output: str
    """S3D's `mixed_5c` (1024 numbers) or `embedding` (512); C3D's `fc6`; any other's own names."""
    sampling: str | dict
    """A preset's name, or frame_rate, frames, stride_seconds and tail."""
    frame_size: int
    """Pixels on a side of the square that the network sees."""
    precision: str
    """`float32` or `bfloat16`."""
    max_missing: float
    """Largest fraction of the declared length that may fail to decode."""
    max_bad_packets: float
    """Largest fraction of packets that may fail to decode."""
    feature_version: int
    """Raise it to encode everything again."""

    def __post_init__(self) -> None:
        if self.encoder not in OUTPUTS and not re.fullmatch(r"[\w.]+:\w+", self.encoder):
            raise ValueError(
                f"encoder is {self.encoder!r}, allowed: {', '.join(OUTPUTS)}, torchvision:NAME, or"
                " the package.module:factory of a network"
            )
        if self.encoder in OUTPUTS:
            _one_of("output", self.output, OUTPUTS[self.encoder])
        _one_of("precision", self.precision, ("float32", "bfloat16"))
        if self.frame_size < 32 or self.frame_size % 2:
            raise ValueError(f"frame_size is {self.frame_size}, must be even and at least 32")
        if self.encoder == "s3d" and self.grid.frames % 2:
            raise ValueError(f"sampling.frames is {self.grid.frames}; s3d needs an even number")
        for name in ("max_missing", "max_bad_packets"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must lie in [0, 1]")

    @property
    def grid(self) -> Sampling:
        """`sampling`, resolved."""
        if isinstance(self.sampling, dict):
            return settings_from(Sampling, self.sampling, where="sampling")
        _one_of("sampling", self.sampling, tuple(PRESETS))
        return PRESETS[self.sampling]


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularySettings:
    """Which words have token ids."""

    max_words: int
    """The most frequent words that are kept."""
    min_count: int
    """Rarer words are dropped."""
    max_caption_words: int
    """Known words of a caption that are kept, from its start."""
    word_list: str | None
    """A file with a word on each line to use instead of counting, or null."""

    def __post_init__(self) -> None:
        for name in ("max_words", "min_count", "max_caption_words"):
            _at_least(name, getattr(self, name), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BagsSettings:
    """What a clip is, and which captions are near it."""

    anchor: str
    """`caption`: a clip around each caption; `grid`: one every grid_seconds."""
    clip_seconds: float
    """Length of a clip, at least the features' stride."""
    grid_seconds: float
    """From one clip's start to the next; used by `grid` alone."""
    bag_window_seconds: float
    """Captions this far from the clip still belong to its bag."""
    bag_size: int
    """The nearest captions that are kept."""
    val_fraction: float
    """Videos whose split is not given: the fraction that a hash of the id puts into `val`."""

    def __post_init__(self) -> None:
        _one_of("anchor", self.anchor, ("caption", "grid"))
        _at_least("bag_size", self.bag_size, 1)
        _at_least("bag_window_seconds", self.bag_window_seconds, 0)
        for name in ("clip_seconds", "grid_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"val_fraction is {self.val_fraction}, must lie in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What the report shows."""

    title: str
    """Heading of the page."""
    rejected_rows: int
    """Rows of the table of rejected videos."""

    def __post_init__(self) -> None:
        _at_least("rejected_rows", self.rejected_rows, 0)


SECTIONS = {
    "plan": PlanSettings,
    "manifest": ManifestSettings,
    "captions": CaptionsSettings,
    "encode": EncodeSettings,
    "vocabulary": VocabularySettings,
    "bags": BagsSettings,
    "report": ReportSettings,
}


def main(argv: list[str] | None = None) -> None:
    """Check one frozen section of this package."""
    check_section(SECTIONS, argv, prog="python -m pipeline.settings")


if __name__ == "__main__":
    run(main)
