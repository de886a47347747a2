"""The words of shell text as pieces: text, variables, and what is known only when it runs. Pure values."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

_BRACKETS = {
    "{": re.compile(r"\\.|[{}]", re.DOTALL),
    "(": re.compile(r"\\.|[()]|'[^']*'?", re.DOTALL),
    "((": re.compile(r"\\.|\(\(|\)\)|'[^']*'?", re.DOTALL),
}
"""What decides where a bracket ends: what is escaped or in single quotes does not."""


class Kind(Enum):
    """What a piece of a word is."""

    TEXT = "text"
    VARIABLE = "variable"
    OPAQUE = "opaque"
    """Known only when it runs: `$(nproc)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a word that is of one kind; text never holds more than one line of the source.

    Attributes:
        text: the text, the variable's name, or the opaque part as written.
        operator: `:-`, `-`, `:=`, `=`, `:?`, `?`, `:+` or `+` with `argument`; empty for the plain value.
        many: each element is a word of its own: `"${LIST[@]}"`, `"$@"`.

    """

    text: str
    offset: int
    kind: Kind = Kind.TEXT
    quoted: bool = False
    operator: str = ""
    argument: tuple[Piece, ...] = ()
    many: bool = False
    written: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A word, or an operator, which has no pieces; `items` are an array's words behind `NAME=`."""

    offset: int
    operator: str = ""
    pieces: tuple[Piece, ...] = ()
    items: tuple[Token, ...] | None = None

    @property
    def literal(self) -> str | None:
        """Return the text of a word without quotes and expansions; None for any other."""
        if len(self.pieces) == 1 and self.pieces[0].kind is Kind.TEXT and not self.pieces[0].quoted:
            return self.pieces[0].text
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a format differs from the shell.

    Attributes:
        operators: `;`, `|`, redirections and comments mean something.
        dollars: `$$` is one dollar (compose, systemd), and quotes keep no variable from being replaced.

    """

    operators: bool = True
    dollars: bool = False


SHELL = Dialect()
WORDS_ONLY = Dialect(operators=False, dollars=True)


def moved(piece: Piece, by: int) -> Piece:
    """Return a piece as it stands in a text that begins `by` characters earlier."""
    argument = tuple(moved(inner, by) for inner in piece.argument)
    return replace(piece, offset=piece.offset + by, argument=argument)


def end_of(text: str, opening: str, closing: str, start: int) -> int:
    """Return where what opens at `start` has been closed; the end of the text where it never is."""
    depth = 0
    for match in _BRACKETS[opening].finditer(text, start):
        if match[0] == closing:
            depth -= 1
            if depth <= 0:
                return match.end()
        elif match[0] == opening:
            depth += 1
    return len(text)
