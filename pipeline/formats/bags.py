"""The bag cache of one shard: clips, the captions near them, and where their features lie.

An uncompressed `.npz` whose members start on 64-byte borders. `numpy.load` opens it like any other;
`read_bags` maps its members instead, so that a trainer's start costs neither time nor memory.

Letters: V videos, M captions, L token ids of a caption, C clips, A captions of a bag.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path

import numpy as np

from pipeline.formats.arrays import BROKEN, num_bytes, read_header
from pipeline.formats.files import digest_of, whole_file
from pipeline.formats.mapped_files import let_go, map_file
from pipeline.formats.names import again

VERSION = "bags-1"
ALIGNMENT = 64
TRAIN, VAL = 0, 1
_HEADER_BYTES = 1024
"""More than the header of any array here."""
_EXTRA_ID = 0xD935  # the id that Android's zipalign uses for padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Bags:
    """The arrays of one shard's bags; videos own consecutive captions and consecutive clips."""

    vid_paths: np.ndarray
    """[V] bytes: the key of each video's sample in the shard."""
    feature_offset: np.ndarray
    """[V] int64: byte of the tar at which the video's features start."""
    feature_count: np.ndarray
    """[V] int32: the video's feature rows."""
    video_split: np.ndarray
    """[V] int8: `TRAIN` or `VAL`."""
    cap_ids: np.ndarray
    """[M, L] int32: token ids, 0 = padding."""
    cap_lens: np.ndarray
    """[M] int32: token ids before the padding, at least 1."""
    cap_video: np.ndarray
    """[M] int32: the caption's video."""
    cap_start: np.ndarray
    """[M] float64 seconds."""
    cap_stop: np.ndarray
    """[M] float64 seconds."""
    cap_hash: np.ndarray
    """[M] int64: equal for captions with the same token ids."""
    clip_video: np.ndarray
    """[C] int32: the clip's video."""
    clip_start: np.ndarray
    """[C] float64 seconds."""
    clip_stop: np.ndarray
    """[C] float64 seconds."""
    clip_feature_start: np.ndarray
    """[C] int32: the clip's first feature row within its video."""
    clip_feature_count: np.ndarray
    """[C] int32: its feature rows, at least 1."""
    bag_idx: np.ndarray
    """[C, A] int32: rows of the caption table, nearest first, -1 = padding, no repeats."""
    metadata: dict
    """Recipe, vocabulary and shard digests, counts; any JSON values."""

    @property
    def num_videos(self) -> int:
        """V."""
        return len(self.vid_paths)

    @property
    def num_captions(self) -> int:
        """M."""
        return len(self.cap_ids)

    @property
    def num_clips(self) -> int:
        """C."""
        return len(self.bag_idx)


ARRAYS = tuple(field.name for field in fields(Bags) if field.name != "metadata")
_DTYPES = {
    "vid_paths": "S", "feature_offset": "<i8", "feature_count": "<i4", "video_split": "|i1",
    "cap_ids": "<i4", "cap_lens": "<i4", "cap_video": "<i4", "cap_start": "<f8", "cap_stop": "<f8",
    "cap_hash": "<i8", "clip_video": "<i4", "clip_start": "<f8", "clip_stop": "<f8",
    "clip_feature_start": "<i4", "clip_feature_count": "<i4", "bag_idx": "<i4",
}  # fmt: skip


def write_bags(path: str | Path, bags: Bags) -> None:
    """Check `bags` and write them; the same arrays give the same bytes.

    Raises:
        ValueError: an array has a wrong type or shape, or an index points outside its table.
    """
    check_bags(bags, where=str(path))
    text = json.dumps({"version": VERSION, **bags.metadata}, sort_keys=True).encode("utf-8")
    members = {"metadata": np.frombuffer(text, dtype=np.uint8)}
    members |= {name: getattr(bags, name) for name in ARRAYS}
    with whole_file(path) as scratch, zipfile.ZipFile(scratch, "w", zipfile.ZIP_STORED) as archive:
        for name, array in members.items():
            _write_member(archive, f"{name}.npy", np.ascontiguousarray(array))


def read_bags(path: str | Path) -> Bags:
    """Map the arrays of a bag file read-only and check their bounds.

    Raises:
        ValueError: the file is cut, foreign, of another version, or an index is out of bounds.
    """
    try:
        content, arrays = _map_members(Path(path))
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise ValueError(f"{path} is not a whole bag file ({error}): {again(path)}") from None
    metadata = _metadata(path, arrays)
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise ValueError(f"{path} lacks the arrays {', '.join(missing)}: {again(path)}")
    bags = Bags(**{name: arrays[name] for name in ARRAYS}, metadata=metadata)
    check_bounds(bags, where=str(path))
    let_go(content)
    return bags


def bags_digest(path: str | Path) -> str:
    """A digest of a bag file's content from its members' stored checksums, without reading them."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [(info.filename, info.file_size, info.CRC) for info in archive.infolist()]
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise ValueError(f"{path} is not a whole bag file ({error}): {again(path)}") from None
    return digest_of(members)


def check_bags(bags: Bags, *, where: str) -> None:
    """Refuse arrays that are not what `Bags` promises; `where` names them in the error."""
    check_bounds(bags, where=where)
    _check_sorted(bags.cap_video, f"{where}: cap_video")
    _check_sorted(bags.clip_video, f"{where}: clip_video")
    _check_bag_rows(bags, where)


def check_bounds(bags: Bags, *, where: str) -> None:
    """Refuse arrays that a trainer could not safely index with; reads each of them once."""
    for name in ARRAYS:
        array = getattr(bags, name)
        expected = _DTYPES[name]
        if array.dtype.kind != "S" if expected == "S" else array.dtype != np.dtype(expected):
            raise ValueError(f"{where}: {name} is {array.dtype}, expected {expected}")
    _check_lengths(bags, where)
    _check_range(bags.cap_video, 0, bags.num_videos, f"{where}: cap_video")
    _check_range(bags.clip_video, 0, bags.num_videos, f"{where}: clip_video")
    _check_range(bags.bag_idx, -1, bags.num_captions, f"{where}: bag_idx")
    _check_range(bags.cap_lens, 1, bags.cap_ids.shape[1] + 1, f"{where}: cap_lens")
    _check_range(bags.video_split, TRAIN, VAL + 1, f"{where}: video_split")
    _check_feature_rows(bags, where)


def _check_lengths(bags: Bags, where: str) -> None:
    lengths = {"feature": bags.num_videos, "video": bags.num_videos, "vid": bags.num_videos}
    lengths |= {"cap": bags.num_captions, "clip": bags.num_clips, "bag": bags.num_clips}
    for name in ARRAYS:
        array, expected = getattr(bags, name), lengths[name.split("_")[0]]
        dimensions = 2 if name in ("cap_ids", "bag_idx") else 1
        if array.ndim != dimensions or len(array) != expected:
            raise ValueError(f"{where}: {name} has shape {array.shape}, expected {expected} rows")


def _check_range(values: np.ndarray, low: int, stop: int, what: str) -> None:
    if values.size and (values.min() < low or values.max() >= stop):
        raise ValueError(
            f"{what} spans [{values.min()}, {values.max()}], allowed: [{low}, {stop - 1}]"
        )


def _check_sorted(values: np.ndarray, what: str) -> None:
    if (np.diff(values) < 0).any():
        raise ValueError(f"{what} is not sorted: videos must own consecutive rows")


def _check_feature_rows(bags: Bags, where: str) -> None:
    """Every clip has rows, and they lie in its video."""
    stops = bags.clip_feature_start.astype(np.int64) + bags.clip_feature_count
    if bags.num_clips and (
        bags.clip_feature_start.min() < 0
        or bags.clip_feature_count.min() < 1
        or (stops > bags.feature_count[bags.clip_video]).any()
    ):
        raise ValueError(f"{where}: a clip's feature rows lie outside its video")


def _check_bag_rows(bags: Bags, where: str) -> None:
    """Every bag holds captions of its clip's video, none of them twice."""
    filled = bags.bag_idx >= 0
    if not filled.any(axis=1).all():
        raise ValueError(f"{where}: a bag is empty")
    owners = bags.cap_video[np.where(filled, bags.bag_idx, 0)] if filled.size else filled
    if filled.size and (owners != bags.clip_video[:, None])[filled].any():
        raise ValueError(f"{where}: a bag holds a caption of another video")
    if holds_twice(bags.bag_idx).any():
        raise ValueError(f"{where}: a bag holds a caption twice")


def holds_twice(bags_BA: np.ndarray) -> np.ndarray:
    """Which bags hold a caption twice: [B, A] with -1 as padding -> [B] bool."""
    ordered_BA = np.sort(bags_BA, axis=1)
    return ((np.diff(ordered_BA, axis=1) == 0) & (ordered_BA[:, 1:] >= 0)).any(axis=1)


def _metadata(path: str | Path, arrays: dict[str, np.ndarray]) -> dict:
    raw = arrays.get("metadata", np.zeros(0, np.uint8))
    try:
        metadata = json.loads(raw.tobytes())
        version = metadata.pop("version")
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise ValueError(f"{path} is not a bag file of this project") from None
    if version != VERSION:
        raise ValueError(f"{path} holds format {version!r}, expected {VERSION!r}: {again(path)}")
    return metadata


def _write_member(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    """Write one array so that its bytes start on a border of `ALIGNMENT` within the file."""
    assert archive.fp is not None  # it is open
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    local_header = 30 + len(name)
    pad = -(archive.fp.tell() + local_header + 4) % ALIGNMENT
    info.extra = _EXTRA_ID.to_bytes(2, "little") + pad.to_bytes(2, "little") + b"\0" * pad
    # Known up front, so that zipfile chooses the header before the padding is written.
    info.file_size = array.nbytes
    with archive.open(info, "w") as member:
        np.lib.format.write_array(member, array, allow_pickle=False)


def _map_members(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The map of the file's bytes, and name to array, all of them views of it."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    content = map_file(path)
    for info in members:
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{info.filename} is compressed, so it cannot be mapped")
        arrays[info.filename.removesuffix(".npy")] = _member(content, info)
    return content, arrays


def _member(content: np.ndarray, info: zipfile.ZipInfo) -> np.ndarray:
    """One array at its place in the file's bytes."""
    lengths = content[info.header_offset + 26 : info.header_offset + 30]
    start = info.header_offset + 30 + int(lengths.view("<u2").sum()) if len(lengths) == 4 else 0
    file = BytesIO(content[start : start + _HEADER_BYTES].tobytes())
    header = shape, fortran, dtype = read_header(file)
    first = start + file.tell()
    stop = first + num_bytes(header)
    if fortran or stop > len(content):
        raise ValueError(f"{info.filename} does not fit the file")
    if info.filename == "metadata.npy" and zlib.crc32(content[start:stop].data) != info.CRC:
        raise ValueError("its metadata is damaged")  # the arrays' bounds are checked instead
    if stop == first:
        return np.zeros(shape, dtype)
    return content[first:stop].view(dtype).reshape(shape)
