"""Encode the videos of a shard, and write its tar and index."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.encoders.interface import Encoder, load_encoder
from pipeline.encoders.machine import provenance
from pipeline.formats.manifest import ManifestRow, read_manifest
from pipeline.formats.recipe import Recipe
from pipeline.formats.settings import read_settings
from pipeline.formats.shard_writer import write_shard
from pipeline.nvdec import nvdec_fault
from pipeline.reuse import FeatureStore
from pipeline.settings import EncodeSettings
from pipeline.shard_encoder import EncodeRun, ShardEncoder

logger = logging.getLogger(__name__)


def encode_shard(
    manifest: Path,
    settings_path: Path,
    outputs: tuple[Path, Path],
    run: EncodeRun,
    *,
    device: str,
    compiled: bool = False,
) -> None:
    """Encode the videos of a manifest on `device`; as `encode_rows`."""
    settings = read_settings(EncodeSettings, settings_path)
    rows = read_manifest(manifest)
    encoder = load_encoder(settings, device, compiled=compiled)
    encode_rows(rows, settings, encoder, outputs, run)


def encode_rows(
    rows: list[ManifestRow],
    settings: EncodeSettings,
    encoder: Encoder,
    outputs: tuple[Path, Path],
    run: EncodeRun,
) -> None:
    """Encode `rows` and write the tar and the index (`outputs`), whole or not at all.

    Raises:
        ValueError: features overflow float16 or are NaN.
    """
    recipe = recipe_of(settings, encoder)
    store = FeatureStore(*outputs, recipe)
    gpu = decoding_gpu(run.decoder, encoder)
    shard = ShardEncoder(rows, settings, encoder, store, run)
    shard.encode(gpu)
    how = provenance(encoder, shard.batch_size, gpu_decodes=gpu is not None)
    write_shard(*outputs, shard.videos(), recipe, how)
    store.finish()


def decoding_gpu(decoder: str, encoder: Encoder) -> int | None:
    """The GPU that is to decode when `decoder` is `nvdec` and it can; it is the encoder's own."""
    if decoder != "nvdec":
        return None
    gpu = encoder.device.index or 0
    if fault := nvdec_fault(gpu):
        logger.warning("NVDEC does not work here (%s): decoding on the CPU", fault)
        return None
    return gpu


def recipe_of(settings: EncodeSettings, encoder: Encoder) -> Recipe:
    """The identity of the features that `encoder` makes with these settings."""
    return Recipe(
        encoder=encoder.name,
        weights_sha256=encoder.weights_sha256,
        output=settings.output,
        feature_dim=encoder.feature_dim,
        frame_size=settings.frame_size,
        sampling=settings.grid,
        precision=settings.precision,
        feature_version=settings.feature_version,
    )
