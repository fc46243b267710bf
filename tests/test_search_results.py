"""What is told of a clip that a search found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.formats.captions import read_captions, write_captions
from tests.tiny_model import run_search
from tests.tiny_results import TEXTS
from trainer.search_results import open_library


def test_a_library_knows_the_shard_of_a_video_and_a_folder_that_is_none(tiny, tmp_path):
    library = open_library(tiny.root)
    assert [library.shard_of(video_id) for video_id in ("b", "c")] == ["00000", "00001"]
    assert library.path_of("00001", "c") == "videos/c.mp4"
    with pytest.raises(ValueError, match=r"'d' is in no bag file of .*: rejected\.csv may say why"):
        library.shard_of("d")
    with pytest.raises(FileNotFoundError, match="lists no shards: is --results right"):
        open_library(tmp_path / "elsewhere")


def test_captions_newer_than_the_bags_are_named_with_what_to_run(tiny):
    path = tiny.root / "captions/00001.parquet"
    captions, _ = read_captions(path)
    moved = [replace(c, start_seconds=c.start_seconds + 0.5) for c in captions]
    write_captions(path, moved, {"read": len(moved)})
    line = (
        r"00001\.parquet lacks the caption of 'c' at .* s that bags/00001\.npz holds: .*run snake"
    )
    with pytest.raises(ValueError, match=line):
        run_search(tiny, "--video=a.1", "--at=2.5")


def test_a_hit_tells_the_captions_nearest_to_it(tiny):
    hits = run_search(tiny, "rice")["hits"]
    (hit,) = [h for h in hits if (h["video_id"], h["start"]) == ("c", 2.0)]
    assert [c["text"] for c in hit["captions"]] == [TEXTS[4], TEXTS[3]]  # then the earlier row
    assert hit["captions"][0] == {"start": 2.0, "end": 4.0, "text": "mix the rice"}
