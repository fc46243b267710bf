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

import numpy as np

from pipeline.decode_limits import USUAL_LIMITS, Limits, WaitingWindows
from pipeline.decode_pool import decode_all
from pipeline.decoding import Event, Failed, Finished, Job, Started, Window
from pipeline.encode_progress import GpuTally, Progress
from pipeline.encoders.batch_size import held_size
from pipeline.encoders.batches import WindowBatch
from pipeline.encoders.interface import Encoder
from pipeline.encoders.machine import machine_state
from pipeline.formats.manifest import ManifestRow
from pipeline.formats.shard import EncodedVideo, VideoFacts
from pipeline.reuse import RETRY_ALL, FeatureStore, Retry
from pipeline.settings import EncodeSettings
from pipeline.verdicts import facts_of_decoded, facts_of_failed, facts_of_rejected, judged

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeRun:
    """How a shard is encoded; what its features are, the settings say."""

    batch: int | str = 8
    """Windows in one batch of the network, or `auto`: then it is probed once and held."""
    workers: int = 1
    """Decoding processes; 0: none."""
    limits: Limits = USUAL_LIMITS
    retry: Retry = RETRY_ALL
    decoder: str = "cpu"
    """Or `nvdec`, where that works."""


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
        run: EncodeRun,
    ):
        self.rows, self.settings, self.store = rows, settings, store
        self.encoder, self.run = encoder, run
        self.batch: WindowBatch | None = None
        self.facts: dict[int, VideoFacts] = {}
        self.unfinished: dict[int, Unfinished] = {}
        self.num_reused = 0
        self.gpu_tally = GpuTally()

    def encode(self, gpu: int | None = None) -> None:
        """Fill `facts` for every row; the features are left in the store. `gpu` decodes, if any."""
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
            workers=self.run.workers,
            waiting_windows=waiting,
            limits=self.run.limits,
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
        if gpu is not None and jobs:
            logger.info("%s", self.gpu_tally.text())

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
        if isinstance(self.run.batch, int):
            return self.run.batch
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
        if found is None or self.run.retry.wanted(found.reason):
            return None
        if not found.num_frames:
            return found
        # It decoded, and limits refused it: today's may be wider.
        cleared = replace(found, status="encoded", reason="", error_message="")
        facts = judged(cleared, row, self.settings)
        return facts if facts.status == "failed" else None

    def _handle(self, event: Event) -> None:
        number = event.number
        match event:
            case Started():
                self.unfinished[number] = Unfinished()
            case Window():
                assert self.batch is not None
                with self.progress.spending("model"):
                    served = self.batch.add(event.pixels, self.unfinished[number].rows)
                if served:
                    self._settle()
            case Finished():
                self.unfinished[number].end = event
                self.gpu_tally.note(self.rows[number].path, event)
                self._settle()
            case Failed():
                # A process that died or hung before it began has started no video.
                self.unfinished.pop(number, None)
                self.facts[number] = facts_of_failed(self.rows[number], event)
                logger.warning("%s: %s: %s", self.rows[number].path, event.reason, event.message)

    def _settle(self) -> None:
        """Judge and keep every decoded video whose last features have come."""
        for number, video in list(self.unfinished.items()):
            if video.end is None:
                continue
            if len(video.rows) == self.settings.grid.num_vectors(video.end.report.num_frames):
                del self.unfinished[number]
                self._finish(number, np.stack(video.rows), video.end)

    def _finish(self, number: int, features: np.ndarray, end: Finished) -> None:
        row = self.rows[number]
        facts = judged(facts_of_decoded(row, end), row, self.settings)
        self.facts[number] = facts
        if facts.status != "encoded":
            logger.warning("%s: %s: %s", row.path, facts.reason, facts.error_message)
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
        logger.info("%d re-used, %d encoded, %d failed", self.num_reused, len(encoded), failed)
        if encoded:
            seconds = sum(facts.decoded_seconds for facts in encoded)
            logger.info("%s", self.progress.speed(seconds))
            logger.info("%s", self.progress.verdict())
