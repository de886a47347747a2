"""Where one start of vLLM ends and the next begins."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.startup_log.settings import read_settings
from kvwatch.startup_log.vllm_failures import WORDS as FAILURE_WORDS
from kvwatch.startup_log.vllm_lines import WORDS as LINE_WORDS
from kvwatch.startup_log.vllm_start import VllmStart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.startup_log.facts import Start
    from kvwatch.startup_log.unwrap import Entry

WORDS = (
    *LINE_WORDS,
    *FAILURE_WORDS,
    "LLM engine",
    "API server version",
    "\N{FULL BLOCK}",
    "\\u2588",
    "args: ",
    "failed",
    "Error: ",
    "Exception: ",
    "Error:",
)
_VERSION = re.compile(r"vLLM API server version (\d[\w.+-]{0,60})|.*█.* version (\d[\w.+-]{0,60})")
_ARGUMENTS = re.compile(r"(?:non-default args|args): (?:Namespace\()?\{?(.*)", re.DOTALL)
_ENGINE = re.compile(
    r"Initializing an? (?:V[01] )?LLM engine(?: \(v([\w.+-]{1,60})\))? with config: (.*)", re.DOTALL
)
_WEIGHTS = re.compile(r"(?:Loading model weights|Model loading) took ")


class VllmReader:
    """Reads the lines of one source and yields each start when it has ended."""

    def __init__(self) -> None:
        self._start: VllmStart | None = None

    def read(self, entry: Entry) -> Iterator[Start | bool]:
        """Take a line in; yield a start that ends before it, and True if the line meant anything."""
        text = entry.text
        version = _VERSION.match(text)
        arguments = None if version else _ARGUMENTS.match(text)
        engine = None if version or arguments else _ENGINE.match(text)
        if version is not None or (arguments is not None and entry.level is not None):
            kind = "version" if version is not None else "arguments"
            yield from self._begin(entry, anew=self._is_front_of_next(entry, kind))
            self._take_front(entry, kind, version, arguments)
            yield True
        elif engine is not None:
            yield from self._begin(entry, anew=self._is_engine_of_next(entry))
            start = self._current(entry)
            start.engine_names.append((entry.name, entry.process))
            start.version = engine.group(1) or start.version
            start.configure(engine.group(2))
            length = start.configuration.get("max_seq_len", "")
            start.length = int(length) if length.isdecimal() and length.isascii() else start.length
            start.process(entry)
            yield True
        else:
            if _WEIGHTS.match(text) and self._loads_again(entry):
                yield from self._begin(entry, anew=True)
            start = self._start or VllmStart(entry)
            if start.read(entry):
                self._start = start
                yield True

    def finish(self) -> Iterator[Start]:
        """Yield the start that is under way."""
        if self._start is not None:
            yield self._start.finish()
        self._start = None

    def _current(self, entry: Entry) -> VllmStart:
        self._start = self._start or VllmStart(entry)
        return self._start

    def _begin(self, entry: Entry, *, anew: bool) -> Iterator[Start]:
        if anew and self._start is not None:
            yield self._start.finish()
            self._start = VllmStart(entry)

    def _take_front(
        self, entry: Entry, kind: str, version: re.Match[str] | None, arguments: re.Match[str] | None
    ) -> None:
        start = self._current(entry)
        start.front = entry.process or start.front
        start.fronts.add(kind)
        if version is not None:
            start.version = version.group(1) or version.group(2)
        if arguments is not None:
            start.settings = read_settings(arguments.group(1))

    def _is_front_of_next(self, entry: Entry, kind: str) -> bool:
        """Say whether a line of the API server is of another start than the one under way.

        Each start prints its version and its arguments once, before any engine; a further API server of the
        same start (--api-server-count) has another pid but comes after the engines or prints neither.
        """
        start = self._start
        if start is None:
            return False
        if entry.process and start.front:
            return entry.process != start.front or kind in start.fronts
        return bool(start.engine_names or start.processes) or kind in start.fronts

    def _is_engine_of_next(self, entry: Entry) -> bool:
        """Say whether an engine's first line is of another start: data-parallel engines have one each."""
        start = self._start
        if start is None or not start.engine_names:
            return False
        names = [name for name, _ in start.engine_names]
        if entry.name:
            return entry.name in names
        ranks = start.configuration.get("data_parallel_size") or start.settings.get("data_parallel_size", "1")
        return len(names) >= (int(ranks) if ranks.isdecimal() and ranks.isascii() else 1)

    def _loads_again(self, entry: Entry) -> bool:
        """Say whether a process loads weights after it had its pool: the next start of an excerpt."""
        start = self._start
        if start is None:
            return False
        process = start.processes.get(entry.process)
        return process is not None and bool(process.pool) and "weights_bytes" in process.facts
