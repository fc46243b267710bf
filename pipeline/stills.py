"""Small pictures of a video at given moments, for pages.

Read from the keyframe before the moment, not from the start: a picture a frame off does no harm.
They are drawn in a process of their own, for a damaged video can make libav loop for ever or crash,
and the page about weeks of work must not end with it.
"""

from __future__ import annotations

import multiprocessing
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path

import av
import av.container
import av.video.stream
import numpy as np

from pipeline.formats.manifest import Reason, VideoFault
from pipeline.matroska import container_crop
from pipeline.packets import start_seconds
from pipeline.painter import Painter, display_matrix
from pipeline.pixels import Geometry
from pipeline.video_stream import best_stream, open_video

MAX_FRAMES = 2000
"""Decoded for one picture at most; a file with keyframes farther apart gives an earlier one."""
START_SECONDS = 120.0
PICTURE_SECONDS = 20.0


class StillDrawer:
    """Draws stills in a process that is replaced when it dies or says nothing for too long."""

    def __init__(self, seconds: float = PICTURE_SECONDS):
        self.seconds = seconds
        """That a picture may take."""
        self._process: multiprocessing.process.BaseProcess | None = None

    def still(self, path: str | Path, seconds: float, size: int) -> bytes:
        """As the function `still`; a process that died or hung over it is a `VideoFault` too."""
        try:
            if self._process is None and not self._start():
                fault = VideoFault(Reason.TIMEOUT, "the process that draws did not begin")
            else:
                self._pipe.send((path, seconds, size))
                if self._pipe.poll(self.seconds):
                    answer = self._pipe.recv()
                    if isinstance(answer, bytes):
                        return answer
                    raise VideoFault(*answer)
                fault = VideoFault(Reason.TIMEOUT, f"no picture within {self.seconds:g} s")
        except (EOFError, OSError):
            fault = VideoFault(Reason.CRASHED, "drawing it ended its process")
        self.close()
        raise fault

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> bool:
        """Whether the process is ready; its libraries take time that is not the first picture's."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        return self._pipe.poll(START_SECONDS) and bool(self._pipe.recv())


def _serve(pipe: Connection) -> None:
    """The process: what to draw comes in, a JPEG or a fault goes out, until the pipe closes."""
    pipe.send("ready")
    try:
        while True:
            try:
                pipe.send(still(*pipe.recv()))
            except VideoFault as fault:
                pipe.send((fault.reason, fault.message))
    except (EOFError, OSError):
        return


def still(path: str | Path, seconds: float, size: int) -> bytes:
    """The frame shown at `seconds` on the caption clock, cut square as S3D sees it: a JPEG.

    Raises:
        VideoFault: the file cannot be read, or no frame decodes.
    """
    try:
        with open_video(Path(path)) as container:
            stream = best_stream(container)
            moment = start_seconds(container) + Fraction(seconds).limit_denominator(1000)
            frame = _frame_at(container, stream, moment)
            if frame is None:
                raise VideoFault(Reason.NO_FRAMES, f"no frame decodes near {seconds:g} s")
            painter = Painter(Geometry(frame_size=size), stream.time_base, container_crop(stream))
            return _jpeg(painter.paint(frame, display_matrix(frame)))
    except av.FFmpegError as error:
        raise VideoFault(Reason.UNREADABLE, str(error.strerror)) from None


def _frame_at(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, moment: Fraction
) -> av.VideoFrame | None:
    """The last frame that begins by `moment`, or else the first one."""
    shown = None
    try:
        container.seek(int(moment / stream.time_base), stream=stream)
        for number, frame in enumerate(container.decode(stream)):
            late = frame.pts is None or frame.pts * stream.time_base > moment
            if (late and shown is not None) or number >= MAX_FRAMES:
                break
            shown = frame
    except av.FFmpegError:  # damaged from here on: what came before must do
        pass
    return shown


def _jpeg(picture_HW3: np.ndarray) -> bytes:
    """Encode RGB, uint8 [H, W, 3]."""
    codec = av.CodecContext.create("mjpeg", "w")
    codec.height, codec.width = picture_HW3.shape[:2]
    codec.pix_fmt, codec.time_base = "yuvj420p", Fraction(1, 25)
    codec.options = {"flags": "bitexact"}
    frame = av.VideoFrame.from_ndarray(picture_HW3, format="rgb24").reformat(format="yuvj420p")
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)])
