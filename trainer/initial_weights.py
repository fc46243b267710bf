"""What training starts from: random weights, word vectors, a model.pt, or released weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.formats.files import begins_as_zip, sha256_of_file
from pipeline.formats.tags import MODEL
from pipeline.formats.tensors import read_tensors
from trainer.model import TwoTowers, read_model
from trainer.released_weights import is_released, start_from_released
from trainer.settings import TrainSettings
from trainer.word_vectors import load_word_vectors

FILES = ("init_from", "word_vectors", "word_list")
"""The settings that name files whose content decides the result."""


def start(model: TwoTowers, settings: TrainSettings, words: Sequence[str]) -> None:
    """Load what the settings name into `model`, word vectors last; `ValueError` if it is unfit."""
    if settings.init_from:
        start_from(model, settings.init_from, words, word_list=settings.word_list)
    if settings.word_vectors:
        load_word_vectors(model, words, settings.word_vectors, settings.word_list)


def start_from(
    model: TwoTowers, path: str | Path, words: Sequence[str], *, word_list: str | None = None
) -> None:
    """Load a model.pt of the same shapes and vocabulary, or S3D_HowTo100M's released weights.

    Raises:
        ValueError: the file is cut or foreign, or has other shapes or another vocabulary.
    """
    content = _released(path)
    if content is not None:
        start_from_released(model, content, words, path=path, word_list=word_list)
        return
    content = read_model(path)
    if content["vocabulary"] != list(words):
        raise ValueError(f"init_from {path} was trained with another vocabulary")
    own, found = model.state_dict(), content["state"]
    if "log_temperature" in own:  # one that was not trained is in the settings alone
        found.setdefault("log_temperature", own["log_temperature"])
    for name in own:
        if name not in found or own[name].shape != found[name].shape:
            shape = tuple(found[name].shape) if name in found else "nothing"
            raise ValueError(
                f"init_from {path} has {shape} for {name}, expected {tuple(own[name].shape)}"
            )
    model.load_state_dict({name: found[name] for name in own})


def digests(settings: TrainSettings) -> dict[str, str | None]:
    """The sha256 of each file that training starts from, under its setting's name."""
    paths = {name: getattr(settings, name) for name in FILES}
    return {
        f"{name}_sha256": sha256_of_file(path) if path else None for name, path in paths.items()
    }


def _released(path: str | Path) -> dict | None:
    """The content of a released state dict; None for anything else, which `read_model` judges."""
    if not Path(path).exists():
        return None
    try:
        content = read_tensors(path)
    except ValueError:
        return None
    if begins_as_zip(path) and isinstance(content, dict) and content.get("format") == MODEL:
        return None
    return content if is_released(content) else None
