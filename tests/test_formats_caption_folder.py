"""Caption files find their videos by name."""

import pytest

from pipeline.formats.caption_folder import (
    iterate_file_ids,
    list_caption_files,
    match_caption_files,
)
from pipeline.formats.names import sample_key

NFC, NFD = "cr\u00e8me", "cre\u0300me"


def match(folder, names, video_ids):
    for name in names:
        (folder / name).touch()
    matched, _ = match_caption_files(list_caption_files(folder), video_ids)
    return {key: [file.path.split("/")[-1] for file in files] for key, files in matched.items()}


@pytest.mark.parametrize(
    ("name", "video_id"),
    [
        ("a.csv", "a"),
        ("-tCQ4tCQdWE.en.srt", "-tCQ4tCQdWE"),
        ("a.pt-BR.vtt", "a"),
        ("a.en-orig.vtt", "a"),
        ("7m8pab1MfYY.srt.sjson", "7m8pab1MfYY"),
        ("Some Video [Pj-h6MEgE7I].de.vtt", "Some Video [Pj-h6MEgE7I]"),
        ("dotted.name.csv", "dotted.name"),
        ("dotted.name.en.srt", "dotted.name"),
        ("UPPER.SRT", "UPPER"),
        ("bbbbbbbbbbb.en-eEY6OEpapPo.vtt", "bbbbbbbbbbb"),
        ("b.en-nP7-2PuUl7o.vtt", "b"),
        ("b.zh-Hans-en--hkg1h_Wq8A.vtt", "b"),
        ("b.mp4.srt", "b"),
        ("b.MKV.en.srt", "b"),
        ("b.mkv.en.json", "b.mkv"),
        (f"{NFD}.vtt", NFC),
        (f"{NFC}.en.vtt", NFD),
        (f"{NFD}.mp4.srt", NFC),
        (f"{sample_key('with/slash')}.csv", "with/slash"),
    ],
)
def test_a_name_means_its_id(tmp_path, name, video_id):
    assert match(tmp_path, [name], ["other", video_id]) == {video_id: [name]}


def test_the_whole_name_goes_before_a_language(tmp_path):
    """`a.en` is an id here, so its file is not one of `a`."""
    assert match(tmp_path, ["a.en.csv"], ["a", "a.en"]) == {"a.en": ["a.en.csv"]}


@pytest.mark.parametrize("ids", [["a%20b", "a b"], ["a b", "a%20b"]])
def test_an_id_as_it_stands_goes_before_one_that_is_encoded_so(tmp_path, ids):
    assert match(tmp_path, ["a%20b.vtt"], ids) == {"a%20b": ["a%20b.vtt"]}


def test_preferred_is_no_language_then_english_then_the_suffix(tmp_path):
    """Of one language those whose times carry their unit, then JSON, then tables."""
    names = ["a.de.csv", "a.en-US.srt", "a.en.vtt", "a.en.srt", "a.json", "a.srt", "a.mkv.vtt"]
    tables = ["a.csv", "a.tsv"]
    assert match(tmp_path, [*names, *tables], ["a"]) == {
        "a": ["a.mkv.vtt", "a.srt", "a.json", *tables,
              "a.en.vtt", "a.en.srt", "a.en-US.srt", "a.de.csv"]
    }  # fmt: skip


@pytest.mark.parametrize("ids", [[NFC, NFD], [NFD, NFC]])
def test_ids_that_differ_in_the_unicode_form_alone_keep_their_own_files(tmp_path, ids):
    names = [f"{NFC}.vtt", f"{NFD}.vtt"]
    assert match(tmp_path, names, ids) == {NFC: [names[0]], NFD: [names[1]]}


@pytest.mark.parametrize("video_id", [NFC, NFD])
def test_the_file_that_is_named_exactly_so_comes_before_its_twin(tmp_path, video_id):
    names = [f"{NFC}.vtt", f"{NFD}.vtt"]
    ordered = [f"{video_id}.vtt", *(name for name in names if name != f"{video_id}.vtt")]
    assert match(tmp_path, names, [video_id]) == {video_id: ordered}


def test_files_of_no_video_are_given_back(tmp_path):
    for name in ("a.vtt", "b.en.vtt", "aa.vtt", "a.nolanguage.vtt", "a.en-short.x.vtt"):
        (tmp_path / name).touch()
    _, strays = match_caption_files(list_caption_files(tmp_path), ["a"])
    expected = ["a.en-short.x.vtt", "a.nolanguage.vtt", "aa.vtt", "b.en.vtt"]
    assert [file.path.split("/")[-1] for file in strays] == expected
    ids = ["a", "a.en-short.x", "a.nolanguage", "aa", "b"]
    assert list(iterate_file_ids(tmp_path)) == ids


def test_other_files_and_folders_do_not_count(tmp_path):
    (tmp_path / "b.csv").mkdir()
    assert match(tmp_path, ["a.txt", "a.mp4", ".a.csv", "a.csv.part"], ["a", "b", ".a"]) == {}
