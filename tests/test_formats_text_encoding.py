"""The encoding of a text file is found out from its bytes."""

import codecs

import pytest

from pipeline.formats.text_encoding import (
    detect_encoding,
    iterate_lines,
    read_text,
    usual_guess,
)

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
    assert detect_encoding(tmp_path / "t").name == "utf-8"
    assert read_text(tmp_path / "t") == RUSSIAN + "\ufffd\n"


@pytest.mark.parametrize("line", [b"\xff\xfe", b"\xff\xfea\0b\0", b"\xff\xfe\0\0"])
def test_a_mark_within_a_file_is_none(tmp_path, line):
    (tmp_path / "t").write_bytes(b"plain\n" + line)
    assert read_text(tmp_path / "t").startswith("plain\nÿþ")


def test_a_file_cut_within_a_character_is_still_utf8(tmp_path):
    (tmp_path / "t").write_bytes(RUSSIAN.encode()[:-2])
    assert detect_encoding(tmp_path / "t").name == "utf-8"


def test_the_first_damage_may_lie_far_into_the_file(tmp_path):
    (tmp_path / "t").write_bytes(b"ascii only\n" * 200_000 + RUSSIAN.encode("cp1251"))
    assert read_text(tmp_path / "t").endswith(RUSSIAN)


def test_lines_keep_their_ends_and_lose_their_nuls(tmp_path):
    (tmp_path / "t").write_bytes(b"a\0\r\nb\rc\n")
    assert list(iterate_lines(tmp_path / "t")) == ["a\r\n", "b\r", "c\n"]
    assert read_text(tmp_path / "t") == "a\nb\nc\n"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_known_by_its_zeros(tmp_path, encoding):
    (tmp_path / "t").write_bytes(FRENCH.encode(encoding))
    assert read_text(tmp_path / "t") == FRENCH


def test_a_short_file_takes_the_encoding_of_most_files_beside_it(tmp_path, caplog):
    paths = [tmp_path / name for name in ("short", "a", "b", "western", "plain", "gone")]
    paths[0].write_bytes("да\n".encode("cp1251"))
    for path in paths[1:3]:
        path.write_bytes(20 * RUSSIAN.encode("cp1251"))
    paths[3].write_bytes(20 * FRENCH.encode("cp1252"))
    paths[4].write_text("plain\n")
    guess = usual_guess(paths)
    assert guess == detect_encoding(paths[1]).name
    assert read_text(paths[0], guess) == "да\n"
    assert read_text(paths[3], guess) == 20 * FRENCH  # long enough to tell by itself
    (said,) = caplog.messages
    assert said.startswith(f"4 files, as {paths[0]}, say no encoding")
    caplog.clear()
    assert usual_guess([paths[4]]) is None
    assert not caplog.messages
