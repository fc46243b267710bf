"""Small pictures of a video at given moments, for pages.

Read from a key frame before the moment, not from the start. Containers keep their word on where
they seek to more or less (of TS and PS the place is searched for by bytes), so what comes first is
looked at: where it is late, the search begins earlier. Pictures are placed as for the features.

They are drawn in a process of their own, for a damaged video can make libav loop for ever or crash,
and the page about weeks of work must not end with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from pipeline.formats.manifest import Reason, VideoFault
from pipeline.matroska import container_crop
from pipeline.painter import Painter
from pipeline.pixels import Geometry
from pipeline.video_stream import StreamReader, open_video
from pipeline.worker import DiedError, SilentError, Worker

PICTURE_SECONDS = 20.0
SLOTS_PER_SECOND = 1000
"""Of the grid on which frames are placed: so fine that each has a slot of its own."""


class StillDrawer:
    """Draws stills in a process that is replaced when it dies or says nothing for too long."""

    def __init__(self, seconds: float = PICTURE_SECONDS):
        self.seconds = seconds
        """That a picture may take."""
        self._worker: Worker | None = None

    def still(self, path: str | Path, seconds: float, size: int) -> bytes:
        """As the function `still`; a process that died or hung over it is a `VideoFault` too."""
        self._worker = worker = self._worker or Worker(_answers)
        try:
            worker.ask((path, seconds, size))
            answer = worker.next(self.seconds)
        except DiedError:
            fault = VideoFault(Reason.CRASHED, "drawing it ended its process")
        except SilentError:
            late = f"no picture within {self.seconds:g} s"
            late = late if worker.begun else "the process that draws did not begin"
            fault = VideoFault(Reason.TIMEOUT, late)
        else:
            if isinstance(answer, bytes):
                return answer
            raise VideoFault(*answer)
        self.close()
        raise fault

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close(seconds=0)
            self._worker = None


def _answers(request: tuple[str | Path, float, int]) -> Iterator[bytes | tuple[Reason, str]]:
    """In the process: a JPEG, or the fault why there is none."""
    try:
        yield still(*request)
    except VideoFault as fault:
        yield fault.reason, fault.message


def still(path: str | Path, seconds: float, size: int) -> bytes:
    """The frame shown at `seconds` on the caption clock, cut square as S3D sees it: a JPEG.

    Before the first frame that is the first one, behind the last one the last.

    Raises:
        VideoFault: the file cannot be read, its timestamps jump, or no frame decodes.
    """
    moment = Fraction(seconds).limit_denominator(SLOTS_PER_SECOND)
    try:
        for start in _starts(moment):
            picture_HW3 = _picture(Path(path), start, moment, size)
            if picture_HW3 is not None:
                return _jpeg(picture_HW3)
        picture_HW3 = _picture(Path(path), Fraction(0), moment, size, synthetic=True)
    except av.FFmpegError as error:
        raise VideoFault(Reason.UNREADABLE, str(error.strerror)) from None
    if picture_HW3 is None:
        raise VideoFault(Reason.NO_FRAMES, f"no frame decodes near {seconds:g} s")
    return _jpeg(picture_HW3)


def _starts(moment: Fraction) -> Iterator[Fraction]:
    """Where to look for a key frame before `moment`: ever farther back, at last from the start."""
    back = Fraction(0)
    while back < moment:
        yield moment - back
        back = 2 * back or Fraction(1)
    yield Fraction(0)


def _picture(
    path: Path, start: Fraction, moment: Fraction, size: int, *, synthetic: bool = False
) -> np.ndarray | None:
    """RGB, uint8 [size, size, 3]: what `moment` shows to who reads on from about `start`.

    None: nothing, or reading began behind `moment`.
    """
    with open_video(path) as container:
        source = StreamReader(container, SLOTS_PER_SECOND, synthetic, start)
        clock, slot, shown = source.times.clock, round((moment - start) * SLOTS_PER_SECOND), None
        if start:
            try:
                container.seek(clock.zero, stream=source.stream)
            except av.FFmpegError:
                return None
        for frame, matrix, slots in source.placed_frames():
            shown = frame, matrix
            assert source.times.first is not None
            if start and clock.slot(source.times.first) > slot:
                return None
            if slots.stop > slot:
                break
        if shown is None:
            return None
        crop = container_crop(source.stream)
        return Painter(Geometry(frame_size=size), source.stream.time_base, crop).paint(*shown)


def _jpeg(picture_HW3: np.ndarray) -> bytes:
    """Encode RGB, uint8 [H, W, 3]."""
    codec = av.CodecContext.create("mjpeg", "w")
    codec.height, codec.width = picture_HW3.shape[:2]
    codec.pix_fmt, codec.time_base = "yuvj420p", Fraction(1, 25)
    codec.options = {"flags": "bitexact"}
    frame = av.VideoFrame.from_ndarray(picture_HW3, format="rgb24").reformat(format="yuvj420p")
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)])
