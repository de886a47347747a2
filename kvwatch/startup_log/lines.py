"""The lines of a log that hold one of some words, of any size and any content, in bounded memory."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

CHUNK_BYTES = 1 << 16
MAX_LINE_CHARACTERS = 1 << 16
"""A longer line is cut; vLLM's longest, its configuration, is about 8,000 characters."""

_ESCAPES = re.compile(
    r"(?:\x1b|#033|\\x1b|\\u001b|\^\[)\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class LineReader:
    """Yields a stream's lines that hold a word, with their numbers from 1.

    Most of a long log is requests: a word that a whole chunk does not hold is not looked for in its lines.
    A carriage return ends a line too: progress bars use it. Bytes that are no UTF-8 become U+FFFD; UTF-16,
    which PowerShell's `>` writes, is recognised by its mark. Colours stay for `without_colours`.
    """

    def __init__(self, stream: BinaryIO, words: Sequence[str]) -> None:
        self.count = 0
        """Lines so far; at the end, all of them."""
        self._stream = stream
        self._words = words

    def __iter__(self) -> Iterator[tuple[int, str]]:
        pending = ""
        for text in _decoded(self._stream):
            first, *others = text.split("\n")
            pending = _joined(pending, first)
            if not others:
                continue
            yield from self._next(pending, self._words)
            *whole, pending = others
            present = [word for word in self._words if word in text]
            if not present:
                self.count += len(whole)
                continue
            for line in whole:
                yield from self._next(line, present)
        if pending:
            yield from self._next(pending, self._words)

    def _next(self, line: str, words: Sequence[str]) -> Iterator[tuple[int, str]]:
        self.count += 1
        for part in line.split("\r") if "\r" in line else (line,):
            if any(word in part for word in words):
                yield self.count, part


def without_colours(text: str) -> str:
    """Return a line without control characters and terminal escapes, as syslog writes them too."""
    if "\x1b" in text or "[" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROL.sub("", text)


def _decoded(stream: BinaryIO) -> Iterator[str]:
    """Yield the text of a stream in pieces, as they arrive."""
    read = getattr(stream, "read1", stream.read)
    chunk = read(CHUNK_BYTES)
    mark = chunk[:2]
    decoder = codecs.getincrementaldecoder(_UTF16.get(mark, "utf-8-sig"))(errors="replace")
    if mark in _UTF16:
        chunk = chunk[2:]
    while chunk:
        yield decoder.decode(chunk)
        chunk = read(CHUNK_BYTES)
    yield decoder.decode(b"", final=True)


def _joined(head: str, tail: str) -> str:
    return head if len(head) >= MAX_LINE_CHARACTERS else (head + tail)[:MAX_LINE_CHARACTERS]
