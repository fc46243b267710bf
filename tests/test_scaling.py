"""The tool that measures a training on several numbers of ranks: its figures and its sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic_bags import make_results
from trainer.stopwatch import PARTS
from trainer.tools.scaling import Speed, check_ranks, limit, main, speed_of, table

ROOT = Path(__file__).parents[1]


def speed(ranks: int, clips: float = 100.0, **milliseconds: float) -> Speed:
    parts = {name: milliseconds.get(name, 0.0) / 1000 for name in PARTS}
    return Speed(ranks, clips, parts, "compute-bound: 97% of the step computes")


ONE = speed(1, video=60, backward=40)


def test_a_tables_rows_compare_with_one_rank():
    four = speed(4, 250.0, video=15, backward=12.5, exchange=12.3456, other=0.1)
    lines = table([ONE, four]).splitlines()
    assert (
        lines[0]
        == "| ranks | clips/s | speed-up | efficiency | step ms | video | backward | exchange |"
    )
    assert lines[2] == "| 1 | 100 | 1.00 | 100% | 100 | 60.0 | 40.0 | 0.0 |"
    assert lines[3] == "| 4 | 250 | 2.50 | 62% | 39.9 | 15.0 | 12.5 | 12.3 |"
    # Without a run on one rank, a rank of the fewest stands for it.
    assert "| 4 | 400 | 4.00 | 100% |" in table([speed(2, 200.0), speed(4, 400.0)])


@pytest.mark.parametrize(
    ("most", "sentence"),
    [
        (
            speed(4, 250.0, video=15, backward=12, exchange=13),
            "4 ranks are 2.50 times as fast as one; of the 15.0 ms that a step takes too long 13.0"
            " ms are exchange: raise train.global_batch.",
        ),
        (
            speed(2, 150.0, video=30, backward=20, data=17),
            "2 ranks are 1.50 times as fast as one; of the 17.0 ms that a step takes too long 17.0"
            " ms are data: raise run.train.workers, or bring the shards to a faster disk.",
        ),
        (
            speed(2, 110.0, video=58, backward=25, data=5),
            "28.0 ms are video: more ranks make this part no shorter",
        ),
        (speed(2, 190.0, video=30, backward=20), "nothing limits them"),
    ],
)
def test_the_sentence_names_the_part_in_which_most_is_lost(most, sentence):
    assert sentence in limit([ONE, most])


def test_one_number_of_ranks_alone_has_the_runs_own_verdict():
    assert limit([ONE]) == "Ranks 1: compute-bound: 97% of the step computes."


def test_the_first_line_which_warms_up_counts_nothing():
    times = {f"seconds_{name}": 0.5 for name in PARTS}
    lines = [{"clips_per_second": 1.0}] + [
        {"clips_per_second": clips, "verdict": f"v{clips}", **times} for clips in (9.0, 2.0, 3.0)
    ]
    found = speed_of(2, lines)
    assert (found.clips_per_second, found.verdict, found.parts["data"]) == (3.0, "v3.0", 0.5)


def test_ranks_beyond_the_gpus_are_refused_and_those_beyond_the_cores_said(monkeypatch, caplog):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("trainer.tools.scaling.usable_cores", lambda: 4)
    assert check_ranks([2, 1, 2], "auto") == [1, 2]
    with pytest.raises(ValueError, match=r"--ranks 8: this machine has 2 GPUs .* allowed: 1 to 2,"):
        check_ranks([8, 1], "auto")
    assert check_ranks([4], "gloo") == [4]
    assert not caplog.messages
    assert check_ranks([1, 8], "gloo") == [1, 8]
    assert caplog.messages == ["8 ranks share 4 cores here, as they would in training"]


@pytest.mark.parametrize(
    ("gpus", "ranks"), [(0, [1, 2, 4]), (1, [1]), (3, [1, 2]), (8, [1, 2, 4, 8])]
)
def test_without_numbers_they_double_up_to_the_machine(monkeypatch, gpus, ranks):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("trainer.tools.scaling.usable_cores", lambda: 6)
    assert check_ranks(None, "auto") == ranks


def test_what_is_no_number_of_ranks_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--ranks", "0"])
    assert "'0' is no whole number that is at least 1" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_two_runs_make_a_table_and_leave_nothing(tmp_path):
    results, temporary = make_results(tmp_path / "results"), tmp_path / "temporary"
    temporary.mkdir()
    before = sorted(results.root.rglob("*"))
    argv = [
        sys.executable, "-m", "trainer.tools.scaling", *results.train_arguments(),
        "--ranks", "2", "1", "--steps", "10",
    ]  # fmt: skip
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| ranks", "| 1", "| 2"]
    assert rows[1][2:4] == ["1.00", "100%"]
    assert "2 ranks are " in done.stdout
    assert sorted(results.root.rglob("*")) == before
    assert list(temporary.glob("bagpipe*")) == []


def test_a_run_that_fails_is_one_line(tmp_path, capfd):
    results = make_results(tmp_path)
    (tmp_path / "vocabulary.txt").unlink()
    with pytest.raises(ValueError, match="the run on 1 ranks ended with exit status 1; its lines"):
        main([*results.train_arguments(), "--ranks", "1", "--steps", "10"])
    assert "vocabulary.txt" in capfd.readouterr().err
