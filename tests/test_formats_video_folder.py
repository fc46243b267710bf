"""Video files and the ids that their names stand for."""

import pytest

from pipeline.formats.video_folder import find_videos, find_videos_of_captions


@pytest.fixture
def root(tmp_path):
    (tmp_path / "videos/deep").mkdir(parents=True)
    for name in ("a.mp4", "deep/b.WEBM", "cre\u0300me.mkv", "notes.txt", "c.f22.mp4"):
        (tmp_path / "videos" / name).touch()
    return tmp_path / "videos"


def test_each_file_is_found_by_its_name(root):
    found = {
        video_id: path.removeprefix(f"{root}/") for video_id, path in find_videos(root).items()
    }
    assert found == {
        "a": "a.mp4", "b": "deep/b.WEBM", "c.f22": "c.f22.mp4", "cre\u0300me": "cre\u0300me.mkv"
    }  # fmt: skip


def test_ids_of_captions_find_their_files_in_their_own_order(root, tmp_path):
    ids = ["none", "cr\u00e8me", "b", "../up"]
    rows = "".join(f"{video_id},1,2,x\n" for video_id in ids)
    (tmp_path / "c.csv").write_text(f"video_id,start,end,text\n{rows}")
    found = find_videos_of_captions(str(tmp_path / "c.csv"), root)
    assert list(found) == ids
    assert [path.removeprefix(f"{root}/") for path in found.values()] == [
        "none.mp4", "cre\u0300me.mkv", "deep/b.WEBM", "%2E%2E%2Fup.mp4"
    ]  # fmt: skip


def test_no_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none is not a folder: name that of the videos"):
        find_videos(tmp_path / "none")
