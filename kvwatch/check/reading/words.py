"""Words of commands with the lines that they stand in, and text whose lines are known. Pure values."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kvwatch.flags.secrets import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import Place


class Lines(Protocol):
    """Tells in which line of its file a character of a text stands, from 1."""

    def __call__(self, offset: int, /) -> int | None:
        """Return the line of the character at `offset`; None where the format keeps no lines."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Lines by where they begin: `(offset, line)` in order; an offset has the line of the mark before it."""

    marks: tuple[tuple[int, int | None], ...]

    def __call__(self, offset: int) -> int | None:
        """Return the line of the last mark at or before `offset`."""
        at = bisect_right(self.marks, offset, key=lambda mark: mark[0])
        return self.marks[max(0, at - 1)][1] if self.marks else None


def lines_of(text: str, first: int = 1) -> Marks:
    """Return the lines of a text that starts in line `first` of its file."""
    marks: list[tuple[int, int | None]] = [(0, first)]
    at = text.find("\n")
    while at >= 0:
        first += 1
        marks.append((at + 1, first))
        at = text.find("\n", at + 1)
    return Marks(tuple(marks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command, or one value; what no file settles is `HIDDEN` in its text.

    Attributes:
        unresolved: variables and templates in it, as written.
        open: nothing of it is known, not even how many words it is: `$EXTRA_ARGS` without quotes.
        marks: its lines, where it spans several.

    """

    text: str
    place: Place
    unresolved: tuple[str, ...] = ()
    open: bool = False
    marks: Marks | None = None

    @property
    def lines(self) -> Lines:
        """Return the lines of its characters."""
        return self.marks or Marks(((0, self.place.line),))

    @property
    def known(self) -> bool:
        """Say whether its text is all there is."""
        return not self.unresolved


def unknown(written: str, place: Place, *, is_open: bool = False) -> Word:
    """Return a word of which only the spelling is known."""
    return Word(text=HIDDEN, place=place, unresolved=(written,), open=is_open)


def either(name: str, before: Word | None, now: Word) -> Word:
    """Return a variable behind a branch that may have set it: unknown, and open where it holds options."""
    options = any(word is not None and word.text.startswith("-") for word in (before, now))
    return unknown(f"${name}", now.place, is_open=options)


def join(parts: Sequence[Word]) -> Word:
    """Return one word made of several, in order."""
    if len(parts) == 1:
        return replace(parts[0], open=False)
    text = ""
    marks: list[tuple[int, int | None]] = []
    unresolved: list[str] = []
    for part in parts:
        own = part.marks.marks if part.marks else ((0, part.place.line),)
        marks += [(len(text) + offset, line) for offset, line in own]
        text += part.text
        unresolved += part.unresolved
    return Word(
        text=text,
        place=parts[0].place,
        unresolved=tuple(dict.fromkeys(unresolved)),
        marks=Marks(tuple(marks)) if len({line for _, line in marks}) > 1 else None,
    )
