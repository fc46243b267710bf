"""A profiler's trace: of the steps that were asked for, and of no others."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch

from trainer.trace import Trace


def steps_in(folder: Path, text: str, num_steps: int = 6) -> set[str]:
    """The names of the steps that a trace of a loop holds."""
    trace = Trace(text, folder, rank=2)
    for step in range(num_steps):
        trace.before(step)
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(3).sum()
        trace.after(step)
    trace.close()
    path = folder / "trace-rank-2.json"
    if not path.exists():
        return set()
    events = json.loads(path.read_text())["traceEvents"]
    return {e["name"] for e in events if str(e.get("name", "")).startswith("step ")}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("2:3", {"step 2", "step 3", "step 4"}),
        ("0:1", {"step 0"}),
        ("4:9", {"step 4", "step 5"}),  # the run ends before the trace
        ("0:0", set()),
        ("9:1", set()),
    ],
)
def test_the_steps_that_were_asked_for_are_recorded(tmp_path, text, steps):
    assert steps_in(tmp_path, text) == steps


def test_a_trace_for_which_there_is_no_room_is_named_and_ends_nothing(tmp_path, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert steps_in(tmp_path, "0:1") == set()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "the trace is lost: [Errno 28]" in caplog.text
    assert f"{tmp_path}/trace-rank-2.json" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "5", "a:1", "1:", "-1:2", "1:2:3", "1.5:2"])
def test_what_names_no_steps_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"--profile is .*expected START:STEPS"):
        Trace(text, tmp_path, rank=0)
