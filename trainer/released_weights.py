"""Start from the released S3D_HowTo100M state dict: its text module, and `fc` for the clips.

With features `mixed_5c` averaged over a clip and the head `projection` the two towers then are its
joint space; with its 512 numbers (`embedding`) and the head `identity` they are too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from trainer.model import TwoTowers
from trainer.word_vectors import fill_words, read_word_list

WORDS = "text_module.word_embd.weight"
TEXT = {
    f"text.{layer}.{kind}": f"text_module.{layer}.{kind}"
    for layer in ("fc1", "fc2")
    for kind in ("weight", "bias")
}
VIDEO = {"video.project.weight": "fc.weight", "video.project.bias": "fc.bias"}

logger = logging.getLogger(__name__)


def is_released(content: object) -> bool:
    """Whether a loaded file is a state dict with S3D_HowTo100M's text module."""
    return isinstance(content, dict) and any(name.endswith(WORDS) for name in flat(content))


def flat(content: dict) -> dict[str, torch.Tensor]:
    """The state dict itself, without a `state_dict` around it and `module.` before each name."""
    content = content.get("state_dict", content)
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def start_from_released(
    model: TwoTowers,
    content: dict,
    words: Sequence[str],
    *,
    path: str | Path,
    word_list: str | None,
) -> None:
    """Load text module and `fc` into `model`.

    Raises:
        ValueError: a part is missing or has another shape than the settings say, or the word list
            does not fit.
    """
    found = flat(content)
    if word_list is None:
        raise ValueError(f"{path} needs the words of its text module: name them in word_list")
    listed = read_word_list(word_list)
    if len(found[WORDS]) != len(listed) + 1:  # row 0 is padding
        raise ValueError(
            f"{path} has {len(found[WORDS]) - 1} words, but {word_list} lists {len(listed)}"
        )
    own = model.state_dict()
    names = TEXT | {mine: theirs for mine, theirs in VIDEO.items() if mine in own}
    for mine, theirs in names.items():
        if theirs not in found or found[theirs].shape != own[mine].shape:
            shape = tuple(found[theirs].shape) if theirs in found else "nothing"
            raise ValueError(
                f"init_from {path} has {shape} for {theirs}, expected {tuple(own[mine].shape)}:"
                " set embedding_dim 512, word_dim 300, text_hidden 2048 and, unless the features"
                " are S3D's own mixed_5c, video_head identity"
            )
    model.load_state_dict({mine: found[theirs] for mine, theirs in names.items()}, strict=False)
    with torch.no_grad():
        model.text.words.weight[0] = found[WORDS][0]
    vectors = np.asarray(found[WORDS][1:], np.float32)
    fill_words(model, words, zip(listed, vectors, strict=True), str(path))
    logger.info("started from %s: %s", path, ", ".join(sorted(names.values())))
