"""Every clip of a shard in a model's space, made once and re-used until model or bags change.

Letters: C clips, D numbers of an embedding.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.formats.bags import Bags, bags_digest, read_bags
from pipeline.formats.embeddings import ClipEmbeddings, read_embeddings, write_embeddings
from pipeline.formats.files import sha256_of_file
from pipeline.formats.names import again, video_id_of
from pipeline.formats.recipe import Recipe
from trainer.clip_list import TestRow
from trainer.embed_pairs import embed_clips
from trainer.model import TwoTowers, load_model
from trainer.protocol import Pair, check_shard

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model, the rest of its file, and the file's digest."""

    model: TwoTowers
    content: dict
    sha256: str


@dataclass(frozen=True, slots=True)
class EmbeddingFiles:
    """Where one shard's clips come from and where their embeddings go."""

    bags: Path
    tar: Path
    vectors: Path
    index: Path


def open_model(path: Path) -> OpenModel:
    """Load a model.pt; raises as `load_model` does."""
    model, content = load_model(path)
    return OpenModel(model, content, sha256_of_file(path))


def embedding_files(results: Path, shard: str) -> EmbeddingFiles:
    """The files of a shard in a results folder."""
    return EmbeddingFiles(
        results / f"bags/{shard}.npz",
        results / f"shards/{shard}.tar",
        results / f"embeddings/{shard}.npy",
        results / f"embeddings/{shard}.parquet",
    )


def fresh_embeddings(opened: OpenModel, files: EmbeddingFiles) -> ClipEmbeddings:
    """The shard's embeddings, made now where they are missing or of another model or other bags."""
    if not files.bags.exists():
        raise FileNotFoundError(f"{files.bags} is missing: {again(files.bags)}")
    if files.vectors.exists() and files.index.exists():
        found = read_embeddings(files.vectors, files.index)
        if found.tags == _tags(opened, files):
            return found
    logger.info("embedding the clips of %s", files.bags)
    made = embed_shard(opened, files)
    try:
        write_embeddings(files.vectors, files.index, made)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        logger.warning("they are not kept (%s): the next search embeds them again", error)
        return made
    return read_embeddings(files.vectors, files.index)  # mapped, for there may be many


def make_embeddings(opened: OpenModel, files: EmbeddingFiles) -> None:
    """Embed all clips of a shard and write them; raises as `embed_shard`."""
    write_embeddings(files.vectors, files.index, embed_shard(opened, files))


def embed_shard(opened: OpenModel, files: EmbeddingFiles) -> ClipEmbeddings:
    """The embeddings of all clips of a shard.

    Raises:
        ValueError: the shard's features are of another recipe than the model's, the tar is cut, or
            an embedding is not finite.
    """
    bags = read_bags(files.bags)
    recipe = Recipe.from_dict(opened.content["recipe"])
    found = Recipe.from_dict(bags.metadata["recipe"])
    check_shard(files.tar, bags.metadata["tar_bytes"], found, recipe)
    pairs = clip_pairs(bags, files.tar.stem)
    vectors_CD = np.zeros((0, opened.model.settings.embedding_dim), np.float32)
    if pairs:
        normalized = opened.model.settings.normalize
        vectors_CD = embed_clips(
            opened.model,
            pairs,
            files.tar.parent,
            feature_dim=recipe.feature_dim,
            normalized=normalized,
        )
    rows = [pair.row for pair in pairs]
    ids, starts, ends = ([getattr(r, n) for r in rows] for n in ("video_id", "start", "end"))
    return ClipEmbeddings(vectors_CD, ids, starts, ends, _tags(opened, files))


def clip_pairs(bags: Bags, shard: str) -> list[Pair]:
    """Every clip of a bag file and where its features lie, without a text."""
    ids = [video_id_of(key.decode("ascii")) for key in bags.vid_paths]
    columns = (
        bags.clip_video,
        bags.clip_start,
        bags.clip_stop,
        bags.feature_offset[bags.clip_video],
        bags.clip_feature_start,
        bags.clip_feature_count,
    )
    return [
        Pair(TestRow(ids[video], start, stop, ""), [], shard, offset, first, count)
        for video, start, stop, offset, first, count in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _tags(opened: OpenModel, files: EmbeddingFiles) -> dict:
    return {
        "model_sha256": opened.sha256,
        "bags_digest": bags_digest(files.bags),
        "recipe_identity": Recipe.from_dict(opened.content["recipe"]).identity,
        "embedding_dim": opened.model.settings.embedding_dim,
    }
