"""Where one start of a llama-server ends and the next begins: a new process, or a server that wakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.startup_log import llamacpp_lines as lines
from kvwatch.startup_log.llamacpp_failures import WORDS as FAILURE_WORDS
from kvwatch.startup_log.llamacpp_start import LlamaStart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.startup_log.facts import Start
    from kvwatch.startup_log.unwrap import Entry

WORDS = (*lines.WORDS, *FAILURE_WORDS)


class LlamaReader:
    """Reads the lines of one source and yields each start when it has ended."""

    def __init__(self) -> None:
        self._start: LlamaStart | None = None

    def read(self, entry: Entry) -> Iterator[Start | bool]:
        """Take a line in; yield a start that ends before it, and True if the line meant anything."""
        start = self._start
        if start is not None and self._is_of_next(entry.text):
            yield start.finish()
            self._start = LlamaStart(entry, asleep=start) if lines.WAKING.search(entry.text) else None
        start = self._start or LlamaStart(entry)
        if start.read(entry):
            self._start = start
            yield True

    def finish(self) -> Iterator[Start]:
        """Yield the start that is under way."""
        if self._start is not None:
            yield self._start.finish()
        self._start = None

    def _is_of_next(self, text: str) -> bool:
        start = self._start
        if start is None or not (start.ready or start.ended or start.loading):
            return False
        # The drivers' lines come before the server's own; a server that wakes loads without either.
        if lines.WAKING.search(text) or lines.BEGIN.search(text):
            return True
        return (start.ready or start.ended) and lines.LOADING.search(text) is not None
