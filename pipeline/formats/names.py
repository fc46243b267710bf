"""Names of shards and samples, safe in files and tars, and of the command that makes one again."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

SHARD_DIGITS = 5
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def shard_name(index: int) -> str:
    """The name of the shard that holds rows [index·n, (index+1)·n) of the videos table."""
    if not 0 <= index < 10**SHARD_DIGITS:
        raise ValueError(
            f"shard {index} does not fit {SHARD_DIGITS} digits: raise plan.videos_per_shard"
        )
    return f"{index:0{SHARD_DIGITS}d}"


def sample_key(video_id: str) -> str:
    """`video_id` percent-encoded outside `[A-Za-z0-9_-]`; the inverse is `video_id_of`.

    A dot in a WebDataset key would cut the key there, and a slash would make a folder.
    """
    encoded = video_id.encode("utf-8")
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in encoded)


def video_id_of(key: str) -> str:
    """The video id that `sample_key` made `key` from."""
    return unquote(key, errors="strict")


class IdFinder:
    """Finds an id by a name in another Unicode form: a Mac writes file names in NFD, others in NFC.

    An id that is written exactly so comes first, then the one in NFC, then the first of the others.
    """

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = ids
        self._others: dict[str, str] = {}
        for video_id in ids:
            if (composed := unicodedata.normalize("NFC", video_id)) != video_id:
                self._others.setdefault(composed, video_id)

    def __call__(self, name: str) -> str | None:
        """The id that `name` means; None: there is no such id."""
        if name in self._ids:
            return name
        composed = unicodedata.normalize("NFC", name)
        return composed if composed in self._ids else self._others.get(composed)


def again(target: str | Path) -> str:
    """How to make a stage (by its rule's name) or one file again, for the end of a message."""
    return f"run snakemake --cores N --forcerun {shlex.quote(str(target))}"
