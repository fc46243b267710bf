"""The settings of the training stages: one frozen class per config section, without defaults.

The rule that freezes a section checks it with `python -m trainer.settings SECTION FILE`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.formats.settings import check_section, settings_from
from trainer.cli import run


def _one_of(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, allowed: {', '.join(map(repr, allowed))}")


def _above(name: str, value: float, low: float) -> None:
    if not value > low:
        raise ValueError(f"{name} is {value!r}, must be above {low}")


_ABOVE_0 = (
    "epochs", "global_batch", "clips_per_video", "shuffle_shards", "lr", "lr_base_batch",
    "grad_clip", "fp16_init_scale", "fp16_growth_interval", "plain_accumulation", "temperature",
    "embedding_dim", "word_dim", "text_hidden", "bank_drawn", "min_clips",
)  # fmt: skip
_NOT_NEGATIVE = (
    "seed", "weight_decay", "warmup_samples", "margin_seconds", "bank_clips", "bank_captions",
    "bank_warmup_steps", "bank_momentum",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What is trained, on which batches, for how long."""

    seed: int
    """Of the weights, the data order and every draw."""
    epochs: int
    """Passes over the training videos."""
    max_steps: int | None
    """Stop after so many optimizer steps, or null. 0: the model is what training starts from."""
    global_batch: int
    """Clips of an optimizer step over all ranks."""
    clips_per_video: int
    """Clips drawn in one visit of a video; divides global_batch."""
    shuffle_shards: int
    """Shards whose videos are shuffled together; memory locality against mixing."""
    lr: float
    """Peak learning rate of AdamW."""
    lr_scaling: str
    """Multiplies `lr` by global_batch / lr_base_batch (`linear`), its root (`sqrt`) or 1."""
    lr_base_batch: int
    """The batch for which `lr` is meant, where lr_scaling is not `none`."""
    warmup_samples: int
    """Clips over which the learning rate rises from 0.1 × lr to lr."""
    weight_decay: float
    """Of AdamW, on matrices only."""
    grad_clip: float
    """Largest gradient norm; larger gradients are scaled down to it."""
    precision: str
    """Of the towers; the loss is always at least fp32. `fp32`, `bf16` or `fp16`."""
    fp16_init_scale: float
    """First factor of the loss in fp16; halved by each overflow."""
    fp16_growth_interval: int
    """Steps without overflow after which that factor doubles."""
    comm_hook: str
    """How gradients travel between ranks: `none` (exact), `bf16_compress`, `fp16_compress`."""
    plain_accumulation: int
    """Parts of a step with a loss of their own, for comparison; 1 = one exact loss."""
    embedding_dim: int
    """Numbers of a clip's or caption's embedding."""
    word_dim: int
    """Numbers of a word vector."""
    text_hidden: int
    """Width of the text tower between its two layers."""
    norm: str
    """Of the features and of the words' hidden layer: `none`, `layer`, `batch` or `sync_batch`."""
    padding_in_max: bool
    """Let padding take part in the max over words, as the reference code does."""
    word_vectors: str | None
    """Word vectors to start from (.bin, .txt, .txt.gz, .npy with word_list), or null."""
    word_list: str | None
    """The words of a .npy matrix or of a released S3D text module, row by row, or null."""
    freeze_words: bool
    """Do not train the word vectors."""
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
    bank_clips: int
    """Clips of earlier steps that are negatives of captions; 0 = none."""
    bank_captions: int
    """Captions of earlier steps that are negatives of clips; 0 = none."""
    bank_draw: str
    """Which of them a step uses: `all`, `random` or `hardest`."""
    bank_drawn: int
    """How many of each, unless `all`."""
    bank_warmup_steps: int
    """Steps before the bank is used; early embeddings age fast."""
    bank_momentum: float
    """Of slowly following copies of the towers that fill the bank; 0 = the towers do."""
    min_clips: int
    """Fewest training clips that must be left when shards or videos cannot be read."""
    init_from: str | None
    """A model.pt to start from, or null."""

    def __post_init__(self) -> None:
        _one_of("precision", self.precision, ("fp32", "bf16", "fp16"))
        _one_of("video_pool", self.video_pool, ("mean", "max", "attention"))
        _one_of("video_head", self.video_head, ("projection", "identity"))
        _one_of("lr_scaling", self.lr_scaling, ("none", "linear", "sqrt"))
        _one_of("comm_hook", self.comm_hook, ("none", "bf16_compress", "fp16_compress"))
        _one_of("norm", self.norm, ("none", "layer", "batch", "sync_batch"))
        _one_of("bank_draw", self.bank_draw, ("all", "random", "hardest"))
        _one_of("exclusion", self.exclusion, ("none", "overlap", "same_video"))
        _one_of("positive_weight", self.positive_weight, (1, 2))
        for name in _ABOVE_0:
            _above(name, getattr(self, name), 0)
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must not be negative")
        if not self.bank_momentum < 1:
            raise ValueError(f"bank_momentum is {self.bank_momentum}, must lie in [0, 1)")
        if self.max_steps is not None:
            _above("max_steps", self.max_steps, -1)
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
        made = {name: _protocol(name, values) for name, values in self.protocols.items()}
        object.__setattr__(self, "protocols", made)
        if (self.baseline_weights is None) != (self.baseline_words is None):
            raise ValueError("baseline_weights and baseline_words are given both or not at all")

    def protocol(self, name: str) -> ProtocolSettings:
        """The test of that name; an unknown one raises `ValueError`."""
        known = {key: value for key, value in self.protocols.items() if value is not None}
        if name not in known:
            raise ValueError(
                f"protocol {name!r} is not in evaluate.protocols: {', '.join(known) or 'none'}"
            )
        return known[name]


def _protocol(name: str, values: object) -> ProtocolSettings | None:
    if values is None or isinstance(values, ProtocolSettings):
        return values
    if not isinstance(values, dict):
        raise ValueError(f"protocols.{name} must be a section of keys or null")
    return settings_from(ProtocolSettings, values, where=f"protocols.{name}")


SECTIONS = {
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
}


def main(argv: list[str] | None = None) -> None:
    """Check one frozen section of this package."""
    check_section(SECTIONS, argv, prog="python -m trainer.settings")


if __name__ == "__main__":
    run(main)
