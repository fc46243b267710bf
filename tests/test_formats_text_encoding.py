"""The encoding of a text file is found out from its bytes."""

import codecs

import pytest

from pipeline.formats.text_encoding import detect_encoding, iterate_lines, read_text

FRENCH = (
    "Réchauffez la crème à feu doux, puis ajoutez les œufs bien battus et la pâte sablée.\n" * 5
)
RUSSIAN = "Добавьте муку и соль, хорошо перемешайте и поставьте в тёплую духовку на полчаса.\n" * 5


@pytest.mark.parametrize(
    ("text", "encoding", "mark"),
    [
        ("plain", "ascii", b""),
        (FRENCH, "utf-8", b""),
        (FRENCH, "utf-8-sig", b""),
        (FRENCH, "utf-16-le", codecs.BOM_UTF16_LE),
        (FRENCH, "utf-16-be", codecs.BOM_UTF16_BE),
        (FRENCH, "utf-32-le", codecs.BOM_UTF32_LE),
        (FRENCH, "cp1252", b""),
        (RUSSIAN, "cp1251", b""),
        (RUSSIAN, "koi8-r", b""),
    ],
)
def test_text_comes_back(tmp_path, text, encoding, mark):
    (tmp_path / "t").write_bytes(mark + text.encode(encoding))
    assert read_text(tmp_path / "t") == text


def test_a_few_damaged_bytes_do_not_change_the_encoding_of_the_rest(tmp_path):
    (tmp_path / "t").write_bytes(RUSSIAN.encode() + b"\xff\n")
    assert detect_encoding(tmp_path / "t") == "utf-8"
    assert read_text(tmp_path / "t") == RUSSIAN + "\ufffd\n"


@pytest.mark.parametrize("line", [b"\xff\xfe", b"\xff\xfea\0b\0", b"\xff\xfe\0\0"])
def test_a_mark_within_a_file_is_none(tmp_path, line):
    (tmp_path / "t").write_bytes(b"plain\n" + line)
    assert read_text(tmp_path / "t").startswith("plain\nÿþ")


def test_a_file_cut_within_a_character_is_still_utf8(tmp_path):
    (tmp_path / "t").write_bytes(RUSSIAN.encode()[:-2])
    assert detect_encoding(tmp_path / "t") == "utf-8"


def test_the_first_damage_may_lie_far_into_the_file(tmp_path):
    (tmp_path / "t").write_bytes(b"ascii only\n" * 200_000 + RUSSIAN.encode("cp1251"))
    assert read_text(tmp_path / "t").endswith(RUSSIAN)


def test_lines_keep_their_ends_and_lose_their_nuls(tmp_path):
    (tmp_path / "t").write_bytes(b"a\0\r\nb\rc\n")
    assert list(iterate_lines(tmp_path / "t")) == ["a\r\n", "b\r", "c\n"]
    assert read_text(tmp_path / "t") == "a\nb\nc\n"
