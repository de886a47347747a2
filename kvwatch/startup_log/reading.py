"""A whole log: which engine each line is of, which server, which start."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from kvwatch.startup_log import llamacpp, sglang, vllm
from kvwatch.startup_log.facts import Log, Start
from kvwatch.startup_log.lines import LineReader
from kvwatch.startup_log.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from kvwatch.startup_log.unwrap import Entry

MOST_STARTS = 1000
"""A server in a crash loop starts without end: the last ones are kept."""
_MOST_SOURCES = 64

_BLOB = "blob data]"
_WORDS = tuple(
    dict.fromkeys(
        (
            *vllm.WORDS,
            *llamacpp.WORDS,
            *sglang.WORDS,
            # Messages that journald writes as lists of bytes hold no words.
            '"MESSAGE":[',
            '"MESSAGE": [',
            _BLOB,
        )
    )
)


class _Reader(Protocol):
    def read(self, entry: Entry) -> Iterator[Start | bool]: ...

    def finish(self) -> Iterator[Start]: ...


_READERS: tuple[Callable[[], _Reader], ...] = (vllm.VllmReader, llamacpp.LlamaReader, sglang.SglangReader)


def read_log(stream: BinaryIO) -> Log:
    """Read a log to its end; nothing in it is an error. Starts are in the order in which they begin."""
    starts: deque[Start] = deque(maxlen=MOST_STARTS)
    sources: dict[str, tuple[_Reader, ...]] = {}
    seen = blobs = 0
    lines = LineReader(stream, _WORDS)
    for number, line in lines:
        blobs += _BLOB in line
        entry = unwrap(number, line)
        readers = sources.get(entry.source)
        if readers is None:
            readers = tuple(make() for make in _READERS)
        for reader in readers:
            known = False
            for result in reader.read(entry):
                if isinstance(result, Start):
                    starts.append(result)
                    seen += 1
                else:
                    known = result
            if known:
                if entry.source in sources or len(sources) < _MOST_SOURCES:
                    sources[entry.source] = readers
                break
    for readers in sources.values():
        for reader in readers:
            for start in reader.finish():
                starts.append(start)
                seen += 1
    kept = sorted((start for start in starts if says_anything(start)), key=lambda start: start.line)
    return Log(lines=lines.count, starts=tuple(kept), left_out=max(0, seen - len(starts)), blobs=blobs)


def says_anything(start: Start) -> bool:
    """Say whether a start has a fact in it: a line that any program could have written is none."""
    memory = start.memory
    figures = (
        start.version if start.engine == "vllm" else None,
        start.kv_tokens,
        start.num_blocks,
        start.max_concurrency,
        start.model,
        memory.kv_bytes,
        memory.weights_bytes,
        memory.total_bytes,
        start.slots and start.slots.count,
    )
    if any(figure is not None for figure in figures):
        return True
    return start.failure is not None and start.failure.kind != "failed"
