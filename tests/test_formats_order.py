"""The order of ids: appended rows pass, anything else is named."""

import pytest

from pipeline.formats.order import Order, check_order, read_order, write_order


def check(path, ids, *, per_shard=2, allow=False):
    check_order(path, Order(ids, per_shard), table="videos.csv", allow_reorder=allow)


def test_round_trip_with_odd_ids(tmp_path):
    order = Order(["a", "-b c", "é\u2028x", "%,\"'"], 7)
    write_order(tmp_path / "order.txt", order)
    assert read_order(tmp_path / "order.txt") == order


def test_the_first_time_and_appended_rows_pass(tmp_path):
    check(tmp_path / "order.txt", ["a", "b"])
    write_order(tmp_path / "order.txt", Order(["a", "b"], 2))
    check(tmp_path / "order.txt", ["a", "b"])
    check(tmp_path / "order.txt", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "c", "b"], "row 2 was 'b' and is now 'c'"),
        (["x", "a", "b", "c"], "row 1 was 'a' and is now 'x'"),
        (["a", "b"], "row 3 was 'c' and is gone"),
    ],
)
def test_moved_and_deleted_rows_are_refused_unless_allowed(tmp_path, ids, message):
    write_order(tmp_path / "order.txt", Order(["a", "b", "c"], 2))
    with pytest.raises(ValueError, match=f"videos.csv: {message}.*allow_reorder"):
        check(tmp_path / "order.txt", ids)
    check(tmp_path / "order.txt", ids, allow=True)


def test_another_table_altogether_says_where_to_work(tmp_path):
    path = tmp_path / "results/.plan/order.txt"
    write_order(path, Order(["howto-00", "howto-01"], 2))
    line = (
        rf"videos.csv: none of its videos .* {tmp_path}/results was made from, as 'howto-00': work"
    )
    with pytest.raises(ValueError, match=line):
        check(path, ["mine"])
    check(path, ["mine"], allow=True)


def test_shards_of_another_size_are_refused_unless_allowed(tmp_path):
    write_order(tmp_path / "order.txt", Order(["a", "b", "c"], 2))
    with pytest.raises(ValueError, match=r"videos_per_shard is 3 and was 2: .*allow_reorder"):
        check(tmp_path / "order.txt", ["a", "b", "c"], per_shard=3)
    check(tmp_path / "order.txt", ["a", "b", "c"], per_shard=3, allow=True)


@pytest.mark.parametrize(
    "text",
    ["", "a\nb\n", "#bagpipe-order-2\t2\na\nb", "#bagpipe-order-2\na\n", "#bagpipe-order-2\t0\n"],
)
def test_a_foreign_or_cut_file_is_refused(tmp_path, text):
    (tmp_path / "order.txt").write_text(text)
    with pytest.raises(ValueError, match="not a whole bagpipe-order-2 file"):
        read_order(tmp_path / "order.txt")
