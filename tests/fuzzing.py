"""Damaged files for readers: how they are drawn, and what a reader may take and say.

Hypothesis draws the damage. By default every run draws the same (`ci`), and few enough for each
commit; `BAGPIPE_FUZZ=long` draws new ones each time and 100 times as many, and `BAGPIPE_FUZZ=N`
N times as many.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CPU_SECONDS = 10.0
"""Of the process, not of the clock: other work on the machine does not count."""
MEGABYTES = 4096
"""Of address space beyond what the process has; a size that a header made up is far beyond it."""
LONGEST_LINE = 1500
_HOSTILE = [
    0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 10**12, 2**63 - 1, 2**64 - 1
]  # fmt: skip


def use_profile() -> None:
    """Take the examples that `BAGPIPE_FUZZ` asks for."""
    wanted = os.environ.get("BAGPIPE_FUZZ", "ci")
    factor = {"ci": 1, "long": 100}.get(wanted) or int(wanted)
    settings.register_profile(
        "bagpipe",
        max_examples=100 * factor,
        derandomize=wanted == "ci",
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("bagpipe")


use_profile()


@st.composite
def damaged(draw: st.DrawFn, wholes: list[bytes]) -> bytes:
    """One of `wholes` with one to four faults: cut, flipped, removed, repeated or overwritten."""
    data = bytearray(draw(st.sampled_from(wholes)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.sampled_from([1, 2, 4, 8, 64, 512])))
        match draw(
            st.sampled_from(["flip", "number", "number", "insert", "remove", "repeat", "cut"])
        ):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "number":
                size = draw(st.sampled_from([1, 2, 4, 8]))
                number = draw(st.sampled_from(_HOSTILE)) % (1 << 8 * size)
                data[at : at + size] = number.to_bytes(size, "little")
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "remove":
                del data[at:end]
            case "repeat":
                data[at:at] = data[at:end] * draw(st.integers(1, 3))
            case "cut":
                del data[at:]
    return bytes(data)


def replaced(wholes: list[bytes], words: list[bytes], by: list[bytes]) -> st.SearchStrategy[bytes]:
    """One of `wholes` with up to three of its `words` replaced by one of `by`, at any place."""

    @st.composite
    def strategy(draw: st.DrawFn) -> bytes:
        data = draw(st.sampled_from(wholes))
        for _ in range(draw(st.integers(1, 3))):
            word = draw(st.sampled_from(words))
            places = [n for n in range(len(data)) if data.startswith(word, n)]
            if places:
                at = draw(st.sampled_from(places))
                data = data[:at] + draw(st.sampled_from(by)) + data[at + len(word) :]
        return data

    return strategy()


def read_or_refuse(read: Callable[[], object], *, naming: str | Path | None) -> object:
    """What `read` returns, or None where it refuses its file as a reader should.

    It refuses in one line of `ValueError` or `FileNotFoundError` that names the file (`naming`),
    and takes neither time nor memory that the file's own size does not explain.
    """
    began = time.process_time()
    refused = None
    with bounded_memory():
        try:
            found = read()
        except (ValueError, FileNotFoundError) as error:
            found, refused = None, error
    seconds = time.process_time() - began
    assert seconds < CPU_SECONDS, f"{seconds:.1f} s"
    if refused is not None:
        line = str(refused)
        assert type(refused) in (ValueError, FileNotFoundError), repr(refused)
        assert line.strip(), repr(refused)
        assert len(line) < LONGEST_LINE, line
        assert naming is None or str(naming) in line, line
    return found


@contextmanager
def bounded_memory(megabytes: int = MEGABYTES) -> Iterator[None]:
    """Let this process have no more than so much address space beyond what it has now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (megabytes << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
