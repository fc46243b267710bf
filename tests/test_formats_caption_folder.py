"""Caption files find their videos by name."""

import pytest

from pipeline.formats.caption_folder import list_caption_files, match_caption_files
from pipeline.formats.names import sample_key


def match(folder, names, video_ids):
    for name in names:
        (folder / name).touch()
    matched = match_caption_files(list_caption_files(folder), video_ids)
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
    names = ["a.de.csv", "a.en-US.srt", "a.en.vtt", "a.en.srt", "a.json", "a.srt", "a.csv"]
    assert match(tmp_path, names, ["a"]) == {
        "a": ["a.csv", "a.srt", "a.json", "a.en.vtt", "a.en.srt", "a.en-US.srt", "a.de.csv"]
    }


def test_other_files_and_folders_do_not_count(tmp_path):
    (tmp_path / "b.csv").mkdir()
    assert match(tmp_path, ["a.txt", "a.mp4", ".a.csv", "a.csv.part"], ["a", "b", ".a"]) == {}
