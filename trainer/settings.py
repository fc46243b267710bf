"""The settings of the training stages: one frozen class per config section, without defaults.

The rule that freezes a section checks it with `python -m trainer.settings SECTION FILE`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from pipeline.formats.settings import read_settings, settings_from
from trainer.cli import run


def _one_of(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed: {', '.join(map(repr, allowed))}")


def _above(name: str, value: float, low: float) -> None:
    if not value > low:
        raise ValueError(f"{name} is {value!r}, must be above {low}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What is trained, on which batches, for how long."""

    seed: int
    """Of the weights, the data order and every draw."""
    epochs: int
    """Passes over the training videos."""
    max_steps: int | None
    """Stop after so many optimizer steps, or null."""
    global_batch: int
    """Clips of an optimizer step over all ranks."""
    clips_per_video: int
    """Clips drawn in one visit of a video; divides global_batch."""
    shuffle_shards: int
    """Shards whose videos are shuffled together; memory locality against mixing."""
    lr: float
    """Peak learning rate of AdamW."""
    warmup_samples: int
    """Clips over which the learning rate rises from 0.1 × lr to lr."""
    weight_decay: float
    """Of AdamW, on matrices only."""
    grad_clip: float
    """Largest gradient norm; larger gradients are scaled down to it."""
    precision: str
    """Of the towers; the loss is always at least fp32. `fp32` or `bf16`."""
    embedding_dim: int
    """Numbers of a clip's or caption's embedding."""
    word_dim: int
    """Numbers of a word vector."""
    text_hidden: int
    """Width of the text tower between its two layers."""
    video_pool: str
    """How a clip's feature rows become one: `mean`, `max` or `attention`."""
    video_head: str
    """`projection`, or `identity` to keep the encoder's own space (needs equal dimensions)."""
    normalize: bool
    """Compare embeddings by cosine instead of dot product."""
    temperature: float
    """Divides the similarities; lower is sharper."""
    learn_temperature: bool
    """Train the temperature, starting from `temperature`."""
    symmetric: bool
    """Count caption-to-clip negatives too, as the paper does."""
    positive_weight: int
    """1: the paper's loss (floor 0). 2: the reference code's (floor log 2)."""
    exclusion: str
    """Captions that are no negatives: `none`, `overlap` (in time) or `same_video`."""
    margin_seconds: float
    """Widens a clip for `overlap`."""
    exclude_same_text: bool
    """Captions that read the same as one of the bag are no negatives."""
    init_from: str | None
    """A model.pt to start from, or null."""

    def __post_init__(self) -> None:
        _one_of("precision", self.precision, ("fp32", "bf16"))
        _one_of("video_pool", self.video_pool, ("mean", "max", "attention"))
        _one_of("video_head", self.video_head, ("projection", "identity"))
        _one_of("exclusion", self.exclusion, ("none", "overlap", "same_video"))
        _one_of("positive_weight", self.positive_weight, (1, 2))
        for name in ("epochs", "global_batch", "clips_per_video", "shuffle_shards"):
            _above(name, getattr(self, name), 0)
        for name in ("lr", "grad_clip", "temperature", "embedding_dim", "word_dim", "text_hidden"):
            _above(name, getattr(self, name), 0)
        for name in ("seed", "weight_decay", "warmup_samples", "margin_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must not be negative")
        if self.max_steps is not None:
            _above("max_steps", self.max_steps, 0)
        if self.global_batch % self.clips_per_video:
            raise ValueError(
                f"global_batch {self.global_batch} is not a multiple of clips_per_video"
                f" {self.clips_per_video}"
            )

    @property
    def visits_per_step(self) -> int:
        """Videos of an optimizer step over all ranks: G."""
        return self.global_batch // self.clips_per_video


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """One test: which texts and clips, and how a clip is looked at."""

    clips: str | None
    """A list of test clips with true times, or null: the captions of the val split."""
    num_windows: int | None
    """Windows spread over a clip and averaged, or null: all its feature rows, pooled."""
    max_missing: float
    """Largest fraction of its rows whose video has no features."""

    def __post_init__(self) -> None:
        if self.num_windows is not None:
            _above("num_windows", self.num_windows, 0)
        if not 0 <= self.max_missing <= 1:
            raise ValueError(f"max_missing is {self.max_missing}, must lie in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSettings:
    """What the trained model is tested on, and what it is compared with."""

    protocols: dict[str, ProtocolSettings | None]
    """By name; null leaves one out."""
    baseline_weights: str | None
    """The encoder's weights file, whose text tower makes the baseline, or null."""
    baseline_words: str | None
    """The list of that text tower's words, or null."""

    def __post_init__(self) -> None:
        made = {
            name: settings_from(ProtocolSettings, values, where=f"protocols.{name}")
            if isinstance(values, dict)
            else values
            for name, values in self.protocols.items()
        }
        object.__setattr__(self, "protocols", made)
        if (self.baseline_weights is None) != (self.baseline_words is None):
            raise ValueError("baseline_weights and baseline_words are given both or not at all")

    def protocol(self, name: str) -> ProtocolSettings:
        """The test of that name; an unknown one raises `ValueError`."""
        known = [key for key, value in self.protocols.items() if value is not None]
        if name not in known:
            raise ValueError(
                f"protocol {name!r} is not in evaluate.protocols: {', '.join(known) or 'none'}"
            )
        return self.protocols[name]


SECTIONS = {
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
}


def main(argv: list[str] | None = None) -> None:
    """Check one frozen section, before anything runs that would find its fault hours later."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.settings",
        description="A config section as JSON in; out nothing, or one line that names its fault.",
    )
    parser.add_argument("section", choices=sorted(SECTIONS))
    parser.add_argument("file", help="the section, as results/settings/{section}.json holds it")
    args = parser.parse_args(argv)
    read_settings(SECTIONS[args.section], args.file)


if __name__ == "__main__":
    run(main)
