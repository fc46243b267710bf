"""The page of a search: each hit with its picture, its words and a link to its moment."""

from __future__ import annotations

import base64
import re

import pytest

from pipeline import report
from pipeline.formats.files import write_json
from pipeline.report_pictures import SIZE
from pipeline.stills import still
from tests.pages import EVIL, Page, found, make_search_page


def test_each_hit_has_its_picture_and_a_link_to_its_moment(tmp_path, plain_video):
    page = make_search_page(tmp_path, found(plain_video))
    (picture,) = re.findall(r'<img class="still" src="data:image/jpeg;base64,([^"]+)"', page)
    assert base64.b64decode(picture) == still(plain_video, 2.0, SIZE)
    assert f'href="{plain_video.as_uri()}#t=1.0"' in page
    assert page.count("no picture") == 1
    for words in ("“onions”", "The 2 of 9 clips", "does not know: yum", "“cut the onion”", "0.750"):
        assert words in page
    assert Page(page).open == []
    assert [tag for tag, _ in Page(page).tags].count("li") == 2


def test_the_reverse_shows_the_clip_and_the_captions_found(tmp_path, plain_video):
    hits = [{"rank": 1, "score": 0.5, "video_id": "b", "path": "gone.mp4", "start": 0.0, "end": 2.0,
             "text": "fry the rice"}]  # fmt: skip
    clip = found(plain_video)["hits"][0]
    page = make_search_page(tmp_path, found(plain_video, kind="clip", clip=clip, at=2.0, hits=hits))
    assert page.count("data:image/jpeg") == 1
    assert "“fry the rice”" in page
    assert "a, 1.0–3.0 s" in page


def test_text_from_data_is_escaped(tmp_path, plain_video):
    content = found(plain_video, query=EVIL, unknown_words=[EVIL])
    content["hits"][0] |= {"video_id": EVIL, "captions": [{"start": 0, "end": 1, "text": EVIL}]}
    page = make_search_page(tmp_path, content)
    assert "<script" not in page
    assert Page(page).open == []


def test_a_video_that_does_not_decode_has_no_picture_and_no_crash(tmp_path, plain_video):
    (tmp_path / "page.mp4").write_text("<!DOCTYPE html>")
    content = found(tmp_path / "page.mp4")
    assert make_search_page(tmp_path, content).count("no picture") == 2


def test_other_files_are_refused(tmp_path):
    write_json(tmp_path / "x.json", {"format": "bagpipe-retrieval-2"})
    with pytest.raises(ValueError, match="is no bagpipe-search-1 file"):
        report.render_search(tmp_path / "x.json")


@pytest.mark.parametrize("arguments", [[], ["--results=x"], ["--settings=x"]])
def test_neither_results_nor_a_search_is_a_usage_error(arguments, capsys):
    with pytest.raises(SystemExit):
        report.main([*arguments, "--output=y"])
    assert "or --search" in capsys.readouterr().err
