"""The videos table: read in row order, or refused in one line that names the row."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.formats.videos import VideoEntry, read_videos


def test_a_csv_reads_in_row_order_whatever_its_columns(tmp_path):
    text = '\ufeffpath,note,video_id,split\nv/a.mp4,x,a,val\n,,b,\n"v/c,d.mp4",,c d.e,train\n'
    (tmp_path / "v.csv").write_text(text, encoding="utf-8")
    assert read_videos(tmp_path / "v.csv") == [
        VideoEntry("a", "v/a.mp4", "val"),
        VideoEntry("b", "", ""),
        VideoEntry("c d.e", "v/c,d.mp4", "train"),
    ]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_table_saved_by_a_spreadsheet_reads_as_its_csv(tmp_path, delimiter):
    rows = ["video_id,path,split", "a,v/a.mp4,val", "b,v/b.mp4,"]
    text = "\ufeff" + "".join(f"{row}\r\n" for row in rows).replace(",", delimiter)
    (tmp_path / "v.csv").write_bytes(text.encode())
    assert read_videos(tmp_path / "v.csv") == [
        VideoEntry("a", "v/a.mp4", "val"), VideoEntry("b", "v/b.mp4", "")
    ]  # fmt: skip


def test_a_parquet_table_reads_as_its_csv(tmp_path):
    pq.write_table(
        pa.table({"path": ["a.mp4", None], "video_id": ["a", "b"]}), tmp_path / "v.parquet"
    )
    assert read_videos(tmp_path / "v.parquet") == [
        VideoEntry("a", "a.mp4", ""), VideoEntry("b", "", "")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("video_id,path\na,x\nb,y\na,z\n", "'a' stands on line 2 and again on line 4"),
        ("id,path\na,x\n", "no column video_id; found id, path"),
        ("", "no column video_id and path; found nothing"),
        ("video_id,path\n,x\n", "line 2: empty video_id"),
        ("video_id,path,split\na,x,test\n", "line 2: split 'test', allowed: train, val or empty"),
        ('video_id,path\n"a\nb",x\n', "line end or NUL"),
        ("video_id,path\na\tb,x\n", "a tab"),
    ],
)
def test_a_wrong_table_is_refused_by_line(tmp_path, text, message):
    (tmp_path / "v.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_videos(tmp_path / "v.csv")
    assert "v.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "byte"),
    [(b"video_id,path\n\xe9t\xe9,x\n", "0xe9"), ("video_id,path\na,x\n".encode("utf-16"), "0xff")],
)
def test_bytes_that_are_no_text_are_refused(tmp_path, content, byte):
    (tmp_path / "v.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"not a UTF-8 CSV file .*{byte}.*save it as `CSV UTF-8`"):
        read_videos(tmp_path / "v.csv")


def test_a_missing_table_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"pipeline\.tools\.catalog"):
        read_videos(tmp_path / "none.csv")


def test_ids_of_a_parquet_are_texts(tmp_path):
    path = tmp_path / "v.parquet"
    pq.write_table(pa.table({"path": ["a.mp4"], "video_id": [7]}), path)
    with pytest.raises(ValueError, match=r"v\.parquet, line 1: \[7, 'a.mp4', None\] must be texts"):
        read_videos(path)
