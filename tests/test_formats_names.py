"""Names that come from data and stay harmless."""

import pytest

from pipeline.formats.names import IdFinder, sample_key, shard_name, video_id_of


@pytest.mark.parametrize(
    ("video_id", "key"),
    [
        ("dQw4w9WgXcQ", "dQw4w9WgXcQ"),
        ("-3CEg4y7mQM", "-3CEg4y7mQM"),
        ("my.video", "my%2Evideo"),
        ("a/b", "a%2Fb"),
        ("../../etc/passwd", "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd"),
        ("100%", "100%25"),
        ("é 1", "%C3%A9%201"),
    ],
)
def test_keys_are_safe_and_reversible(video_id, key):
    assert sample_key(video_id) == key
    assert video_id_of(key) == video_id


def test_different_ids_have_different_keys():
    ids = ["a.1", "a%2E1", "a_1", "a 1", "A.1", "a.1 "]
    assert len({sample_key(video_id) for video_id in ids}) == len(ids)


def test_shard_names_sort_as_numbers_do():
    assert [shard_name(i) for i in (0, 9, 10, 99_999)] == ["00000", "00009", "00010", "99999"]
    with pytest.raises(ValueError, match=r"raise plan\.videos_per_shard"):
        shard_name(100_000)


def test_an_id_is_found_in_any_unicode_form_and_first_as_it_stands():
    """The Angstrom sign, A with a ring, and A followed by a ring: all are one letter."""
    sign, one, two = "\u212b", "\u00c5", "A\u030a"
    assert [IdFinder([i])(name) for i in (sign, one, two) for name in (sign, one, two)] == [
        *[sign] * 3, *[one] * 3, *[two] * 3,
    ]  # fmt: skip
    assert [IdFinder([two, one, sign])(name) for name in (sign, one, two)] == [sign, one, two]
    assert [IdFinder(ids)(one) for ids in ([two, sign], [sign, two])] == [two, sign]
    assert [IdFinder([two, one])(name) for name in (sign, "A", "\u00e5", "")] == [one, *[None] * 3]
