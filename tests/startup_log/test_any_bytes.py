"""Whatever a file holds: never an exception, never memory without bound, and JSON and text of it."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.startup_log.difference import compare
from kvwatch.startup_log.document import difference_document, log_document
from kvwatch.startup_log.reading import read_log
from kvwatch.startup_log.report import render_difference, render_log
from tests.replay import CAPTURES
from tests.startup_log.public_cases import CASES
from tests.startup_log.reading import LOGS, only, read
from tests.startup_log.vllm_prints import v0_log, v1_log

if TYPE_CHECKING:
    from kvwatch.startup_log.facts import Log

REAL = [
    *(path.read_bytes() for path in sorted(CAPTURES.glob("*/*startup.log"))),
    *(path.read_bytes() for path in sorted(LOGS.glob("*.log"))),
    *(case.log.encode() for case in CASES.values()),
    v1_log("0.10.2").encode(),
    v1_log("0.32.0").encode(),
    v0_log("0.6.5").encode(),
]
LINES = sorted({line for log in REAL for line in log.splitlines()})
NOISE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"\x00", b"\xff\xfe", b"\x1b[31m", b"\r", b"\n", b"99999999999999999999", b"-", b"{", b"'", b"("]
    ),
)


def everything(log: Log) -> None:
    """Make all that the command can make of a log."""
    text = json.dumps(log_document("x", log, [None] * len(log.starts)), allow_nan=False)
    assert json.loads(text)["lines"] == log.lines
    changes = [None, *(compare(old, new) for old, new in zip(log.starts, log.starts[1:], strict=False))]
    shown = render_log(log, [None] * len(log.starts), changes[: len(log.starts)])
    assert all(character.isprintable() or character == "\n" for character in shown)
    if len(log.starts) > 1:
        old, new = log.starts[:2]
        render_difference(old, new, compare(old, new), ("a", "b"))
        json.dumps(difference_document("a", "b", compare(old, new)), allow_nan=False)


@given(st.binary(max_size=2000))
def test_bytes(content: bytes) -> None:
    """Bytes that are no log at all."""
    everything(read(content))


@settings(max_examples=150)
@given(st.lists(st.one_of(st.sampled_from(LINES), NOISE), max_size=40))
def test_lines_in_any_order(lines: list[bytes]) -> None:
    """Real lines of all engines in any order, with noise between them."""
    everything(read(b"\n".join(lines)))


@settings(max_examples=150)
@given(st.data())
def test_changed_logs(data: st.DataObject) -> None:
    """A real log with pieces cut out and noise put in."""
    content = data.draw(st.sampled_from(REAL))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 60))
        content = content[:at] + data.draw(NOISE) + content[at + cut :]
    everything(read(content))


class _Endless(io.RawIOBase):
    """A file of so many bytes that holds the same piece over and over."""

    def __init__(self, piece: bytes, size: int) -> None:
        self._piece, self._left = piece, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        count = min(len(self._piece), len(view), self._left)
        view[:count] = self._piece[:count]
        self._left -= count
        return count


def _peak(stream: io.RawIOBase) -> tuple[Log, int]:
    tracemalloc.start()
    try:
        log = read_log(io.BufferedReader(stream, 1 << 16))
        return log, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_line_of_megabytes() -> None:
    """A line without an end is cut, not kept."""
    log, peak = _peak(_Endless(b"KV cache size: " * 4096, 24 << 20))
    assert (log.lines, log.starts) == (1, ())
    assert peak < 2 << 20


def test_a_log_of_many_lines() -> None:
    """A long log costs the memory of its last chunk, whatever it says."""
    line = b"(EngineCore pid=90) INFO 11-30 20:01:15 [x.py:1] GPU KV cache size: 74,704 tokens\n"
    log, peak = _peak(_Endless(line * 700, 4 << 20))
    assert only(log).kv_tokens == 74_704
    assert peak < 2 << 20


def test_sources_without_end() -> None:
    """Names before a bar, as compose writes them, are kept for so many servers only."""
    lines = (f"server-{number}  | GPU KV cache size: {number} tokens" for number in range(500))
    assert len(read("\n".join(lines)).starts) == 64
