"""Bring every video of a shard to its end: rejected, re-used, encoded or failed.

Windows come from decoding processes, videos interleaved; batches of them run across videos; a video
whose last features have come is judged and put into the store, so that memory holds only those in
work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.decode_pool import USUAL_LIMITS, Limits, WaitingWindows, decode_all
from pipeline.decoding import Event, Finished, Job, Started, Window
from pipeline.encode_progress import Progress
from pipeline.encoders.batch_size import held_size
from pipeline.encoders.batches import WindowBatch
from pipeline.encoders.interface import Encoder, load_encoder
from pipeline.encoders.machine import machine_state, provenance
from pipeline.formats.manifest import ManifestRow, read_manifest
from pipeline.formats.recipe import Recipe
from pipeline.formats.settings import read_settings
from pipeline.formats.shard import EncodedVideo, VideoFacts, write_shard
from pipeline.reuse import RETRY_ALL, FeatureStore, Retry
from pipeline.settings import EncodeSettings
from pipeline.verdicts import facts_of_decoded, facts_of_failed, facts_of_rejected, judged
from pipeline.video import nvdec_fault

log = logging.getLogger(__name__)


def encode_shard(
    manifest: Path,
    settings_path: Path,
    outputs: tuple[Path, Path],
    *,
    device: str,
    compiled: bool = False,
    batch: int | str,
    workers: int,
    limits: Limits = USUAL_LIMITS,
    retry: Retry = RETRY_ALL,
    decoder: str = "cpu",
) -> None:
    """Encode the videos of a manifest on `device`; as `encode_rows`."""
    settings = read_settings(EncodeSettings, settings_path)
    rows = read_manifest(manifest)
    encoder = load_encoder(settings, device, compiled=compiled)
    encode_rows(
        rows,
        settings,
        encoder,
        outputs,
        batch=batch,
        workers=workers,
        limits=limits,
        retry=retry,
        decoder=decoder,
    )


def encode_rows(
    rows: list[ManifestRow],
    settings: EncodeSettings,
    encoder: Encoder,
    outputs: tuple[Path, Path],
    *,
    batch: int | str,
    workers: int,
    limits: Limits = USUAL_LIMITS,
    retry: Retry = RETRY_ALL,
    decoder: str = "cpu",
) -> None:
    """Encode `rows` and write the tar and the index (`outputs`), whole or not at all.

    `batch` is a number of windows, or `auto`: then it is probed once and held.

    Raises:
        ValueError: features overflow float16 or are NaN.
    """
    recipe = recipe_of(settings, encoder)
    store = FeatureStore(*outputs, recipe)
    shard = ShardEncoder(rows, settings, encoder, store, batch=batch, retry=retry)
    gpu = decoding_gpu(decoder, encoder)
    shard.encode(workers, limits, gpu)
    how = provenance(encoder, shard.batch_size, gpu_decodes=gpu is not None)
    write_shard(*outputs, shard.videos(), recipe, how)
    store.finish()


def decoding_gpu(decoder: str, encoder: Encoder) -> int | None:
    """The GPU that is to decode when `decoder` is `nvdec` and it can; it is the encoder's own."""
    if decoder != "nvdec":
        return None
    gpu = encoder.device.index or 0
    if fault := nvdec_fault(gpu):
        log.warning("NVDEC does not work here (%s): decoding on the CPU", fault)
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


@dataclass(slots=True)
class Unfinished:
    """A video that is being decoded and encoded."""

    rows: list[np.ndarray] = field(default_factory=list)
    """Its features so far, each [F] float16."""
    end: Finished | None = None
    """Set when it is decoded."""


class ShardEncoder:
    """Encodes the videos of one shard; batches run across videos."""

    def __init__(
        self,
        rows: list[ManifestRow],
        settings: EncodeSettings,
        encoder: Encoder,
        store: FeatureStore,
        *,
        batch: int | str,
        retry: Retry = RETRY_ALL,
    ):
        self.rows, self.settings, self.store = rows, settings, store
        self.encoder, self.asked = encoder, batch
        self.batch: WindowBatch | None = None
        self.facts: dict[int, VideoFacts] = {}
        self.unfinished: dict[int, Unfinished] = {}
        self.num_reused = 0
        self.retry = retry

    def encode(self, workers: int, limits: Limits = USUAL_LIMITS, gpu: int | None = None) -> None:
        """Fill `facts` for every row; the features are left in the store."""
        self._look_up()
        jobs = [
            Job(number, row.path, row.duration_seconds)
            for number, row in enumerate(self.rows)
            if number not in self.facts
        ]
        grid = self.settings.grid
        self.batch = WindowBatch(self.encoder, self._batch_size(jobs))
        waiting = WaitingWindows(2 * self.batch.size)
        state = partial(machine_state, self.encoder.device)
        self.progress = Progress(jobs, grid.stride_seconds, waiting=waiting, machine=state)
        events = decode_all(
            jobs,
            grid,
            self.encoder.geometry,
            workers=workers,
            waiting_windows=waiting,
            limits=limits,
            gpu=gpu,
        )
        with closing(events):
            for event in self.progress.follow(events):
                self._handle(event)
        with self.progress.spending("model"):
            self.batch.run()
        self._settle()
        assert not self.unfinished, "a decoded video lacks features"
        self._log_end([self.facts[job.number] for job in jobs])

    @property
    def batch_size(self) -> int:
        """Windows in a batch, as it was at the end."""
        assert self.batch is not None
        return self.batch.size

    def videos(self) -> Iterator[EncodedVideo]:
        """All videos in the manifest's order, read from the store one at a time."""
        for number in range(len(self.rows)):
            facts = self.facts[number]
            if facts.status == "encoded":
                yield self.store.load(facts)
            else:
                yield EncodedVideo(facts=facts, features=None)

    def _batch_size(self, jobs: list[Job]) -> int:
        if isinstance(self.asked, int):
            return self.asked
        if not jobs:
            return self.store.last_batch
        side = self.encoder.geometry.frame_size
        shape = (self.settings.grid.frames, side, side, 3)
        return held_size(self.encoder, shape, self.store.partial / "batch.json")

    def _look_up(self) -> None:
        """Fill `facts` of what is rejected, was encoded before, or is not to be retried."""
        for number, row in enumerate(self.rows):
            if not row.accepted:
                self.facts[number] = facts_of_rejected(row)
            elif (found := self.store.find(row)) is not None:
                self.facts[number] = judged(found, row, self.settings)
                self.num_reused += 1
            elif (fault := self._known_fault(row)) is not None:
                self.facts[number] = fault

    def _known_fault(self, row: ManifestRow) -> VideoFacts | None:
        """How this very file failed last time, unless its reason is one to try again."""
        found = self.store.find_failed(row)
        if found is None or self.retry.wanted(found.reason):
            return None
        if not found.num_frames:
            return found
        # It decoded, and limits refused it: today's may be wider.
        cleared = replace(found, status="encoded", reason="", error_message="")
        facts = judged(cleared, row, self.settings)
        return facts if facts.status == "failed" else None

    def _handle(self, event: Event) -> None:
        number = event.number
        if isinstance(event, Started):
            self.unfinished[number] = Unfinished()
        elif isinstance(event, Window):
            with self.progress.spending("model"):
                served = self.batch.add(event.pixels, self.unfinished[number].rows)
            if served:
                self._settle()
        elif isinstance(event, Finished):
            self.unfinished[number].end = event
            self._settle()
        else:
            del self.unfinished[number]
            self.facts[number] = facts_of_failed(self.rows[number], event)
            log.warning("%s: %s: %s", self.rows[number].path, event.reason, event.message)

    def _settle(self) -> None:
        """Judge and keep every decoded video whose last features have come."""
        for number, video in list(self.unfinished.items()):
            if video.end is None:
                continue
            if len(video.rows) == self.settings.grid.num_vectors(video.end.report.num_frames):
                self._finish(number, self.unfinished.pop(number))

    def _finish(self, number: int, video: Unfinished) -> None:
        row, features = self.rows[number], np.stack(video.rows)
        facts = judged(facts_of_decoded(row, video.end), row, self.settings)
        self.facts[number] = facts
        if facts.status != "encoded":
            log.warning("%s: %s: %s", row.path, facts.reason, facts.error_message)
            return
        if not np.isfinite(features).all():
            raise ValueError(
                f"features of {row.video_id!r} overflow float16 or are NaN: check encode.weights"
                " and encode.precision"
            )
        with self.progress.spending("disk"):
            self.store.keep(EncodedVideo(facts=facts, features=features))

    def _log_end(self, tried: list[VideoFacts]) -> None:
        encoded = [facts for facts in tried if facts.status == "encoded"]
        failed = sum(facts.status == "failed" for facts in self.facts.values())
        log.info("%d re-used, %d encoded, %d failed", self.num_reused, len(encoded), failed)
        if encoded:
            seconds = sum(facts.decoded_seconds for facts in encoded)
            log.info("%s", self.progress.speed(seconds))
            log.info("%s", self.progress.verdict())
