"""Turn decoded frames into the pictures that an encoder sees, by filter graphs of libavfilter.

Filter graphs rather than `VideoFrame.reformat`: that one cannot crop, so it would scale the whole
width and round its ratio.
"""

from __future__ import annotations

import contextlib
from fractions import Fraction

import av
import av.filter
import av.video.frame
import av.video.plane
import numpy as np
from av.sidedata.sidedata import SideDataContainer

from pipeline.formats.manifest import Reason, VideoFault
from pipeline.pixels import (
    TO_RGB,
    UNCONVERTED,
    Crop,
    Filter,
    Geometry,
    crop_filters,
    filters,
    first_step,
    is_clipped,
)


class Painter:
    """Paints the frames of one stream; its graphs are built anew when the frames change.

    Where two steps are faster than one pass and give the same bits, it takes them.
    """

    def __init__(self, geometry: Geometry, time_base: Fraction, crop: Crop | None = None):
        self._geometry = geometry
        self._time_base = time_base
        self.crop = crop or Crop()
        self._key: tuple | None = None
        self._pass: av.filter.Graph | None = None
        self._steps: tuple[av.filter.Graph, av.filter.Graph] | None = None

    def paint(self, frame: av.video.frame.VideoFrame, matrix: bytes | None) -> np.ndarray:
        """A frame as uint8 [frame_size, frame_size, 3] RGB, turned by a display matrix.

        Raises:
            VideoFault: UNREADABLE, its colours are of a kind that libav does not convert.
        """
        look = (frame.format.name, int(frame.colorspace), int(frame.color_range))
        key = (frame.width, frame.height, *look, matrix)
        try:
            if key != self._key:
                self._build(*key)
                self._key = key
            return self._picture(frame)
        except av.FFmpegError as error:
            name, number, _ = look
            raise VideoFault(
                Reason.UNREADABLE,
                f"libav does not turn its pictures ({name}, colour matrix"
                f" {UNCONVERTED.get(number, number)}) into RGB: {error.strerror}; convert the"
                " file, for example to bt709",
            ) from None

    def _picture(self, frame: av.video.frame.VideoFrame) -> np.ndarray:
        if self._steps is not None:
            scaled = _through(self._steps[0], frame)
            picture = _through(self._steps[1], scaled).to_ndarray()
            if not is_clipped([_pixels(plane) for plane in scaled.planes], picture):
                return picture
        return _through(self._pass, frame).to_ndarray()

    def _build(
        self, width: int, height: int, pixels: str, space: int, span: int, matrix: bytes | None
    ) -> None:
        colours = f":colorspace={space}:range={span}"
        source = f"video_size={width}x{height}:pix_fmt={pixels}{colours}"
        cut, width, height = crop_filters(self.crop, width, height)
        chain = cut + filters(self._geometry, width, height, matrix)
        self._pass, self._steps = self._graph(source, chain), None
        between = first_step(self._geometry, width, height, pixels)
        if between is not None:
            chain = cut + filters(self._geometry, width, height, matrix, pixels=between)
            size = self._geometry.frame_size
            scaled = f"video_size={size}x{size}:pix_fmt={between}{colours}"
            self._steps = self._graph(source, chain), self._graph(scaled, TO_RGB)

    def _graph(self, source: str, chain: list[Filter]) -> av.filter.Graph:
        graph = av.filter.Graph()
        if hasattr(graph, "threads"):
            graph.threads = 1
        source += f":time_base={self._time_base}:pixel_aspect=1/1"
        graph.link_nodes(
            *(
                graph.add(name, arguments or None)
                for name, arguments in [("buffer", source), *chain, ("buffersink", "")]
            )
        )
        graph.configure()
        return graph


def _through(graph: av.filter.Graph, frame: av.video.frame.VideoFrame) -> av.video.frame.VideoFrame:
    graph.push(frame)
    return graph.pull()


def _pixels(plane: av.video.plane.VideoPlane) -> np.ndarray:
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : plane.width]


def display_matrix(frame: av.video.frame.VideoFrame) -> bytes | None:
    """How a frame is to be turned, if it says so itself."""
    # `frame.side_data` would keep itself in the frame and the frame in itself: only the garbage
    # collector would free the two, after dozens of frames more had been given new memory.
    side_data = SideDataContainer.__new__(SideDataContainer)
    # PyAV stops at kinds that it does not know; libav puts the matrix before them.
    with contextlib.suppress(ValueError):
        side_data.__init__(frame)  # type: ignore[call-arg, misc]
    matrix = side_data.get("DISPLAYMATRIX")
    return None if matrix is None else bytes(matrix)
