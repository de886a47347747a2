"""Sentences as indented paragraphs; text of a log is shown without what a terminal takes for a command."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDTH = 110


def block(title: str, sentences: Sequence[str]) -> str:
    """Return sentences under a title."""
    return "\n".join([title, *wrapped(sentences)])


def wrapped(sentences: Sequence[str]) -> Iterator[str]:
    """Yield the lines of sentences, each indented under its first."""
    for sentence in sentences:
        yield from wrap(
            printable(sentence),
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def printable(text: str) -> str:
    """Return text of a log without what a terminal takes for a command."""
    return text if text.isprintable() else repr(text)[1:-1]
