"""Features as other tools keep them: a .npy or .npz file for each video, named by its id."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pipeline.formats.arrays import npz_names, read_npy, read_npz
from pipeline.formats.files import begins_as_zip, whole_file
from pipeline.formats.names import sample_key
from pipeline.formats.shard import DTYPE

ENDINGS = tuple(
    f"{video}{array}"
    for array in (".npy", ".npz")
    for video in ("", ".mp4", ".webm", ".mkv", ".avi", ".mov", ".flv", ".m4v")
)
"""What may follow an id in the name of a features file."""
_LONGEST_STEM = 200
"""Bytes; a file name has room for 255, with its ending and that of a scratch file."""


def find_arrays(folder: Path, video_id: str) -> list[Path]:
    """The files that may hold a video's features; its id stands in a name plain or as its key."""
    stems = {sample_key(video_id), *([] if set(video_id) & set("/\0") else [video_id])}
    paths = (folder / f"{stem}{ending}" for stem in stems for ending in ENDINGS)
    return sorted(path for path in paths if os.path.isfile(path))  # also no name that is too long


def array_path(folder: Path, video_id: str) -> Path | None:
    """Where `find_arrays` will look for features written now; None for an id without a file name.

    That is the id's key or, where encoding made that too long for a name, the id as it stands.
    """
    for stem in (sample_key(video_id), video_id):
        if not set(stem) & set("/\0") and len(stem.encode("utf-8")) <= _LONGEST_STEM:
            return folder / f"{stem}.npy"
    return None


def read_array(path: Path, feature_dim: int) -> np.ndarray:
    """Read a file's features as float16 [T, feature_dim].

    Raises:
        ValueError: it is no array of numbers, of another shape, or not for float16.
    """
    found = _found(path)
    if found.dtype.kind != "f":
        raise ValueError(f"holds {found.dtype}, needed: floating-point numbers")
    if found.ndim != 2 or found.shape[1] != feature_dim or not len(found):
        raise ValueError(f"has the shape {found.shape}, needed: (T, {feature_dim}) with T >= 1")
    if not np.isfinite(found).all():
        raise ValueError("holds NaN or infinity")
    largest = float(np.abs(found).max())
    if largest > float(np.finfo(DTYPE).max):
        raise ValueError(f"holds {largest:g}, more than float16 can")
    return np.ascontiguousarray(found, dtype=DTYPE)


def _found(path: Path) -> np.ndarray:
    try:
        if not begins_as_zip(path):
            return read_npy(path)
        if "features" not in (names := npz_names(path)):
            raise ValueError(f"no member `features` among {', '.join(names) or 'none'}")
        return read_npz(path, "features")[0]
    except ValueError as error:  # who calls names the file
        raise ValueError(str(error).removeprefix(f"{path} ")) from None


def write_array(path: Path, features: np.ndarray) -> None:
    """Write features as .npy, whole or not at all."""
    with whole_file(path) as scratch, open(scratch, "wb") as file:
        np.lib.format.write_array(file, features, allow_pickle=False)
