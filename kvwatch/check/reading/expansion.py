"""Replace variables in words by what files say of them; what no file says stays unknown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place
from kvwatch.check.reading.shell_tokens import Kind, Piece, Token
from kvwatch.check.reading.words import Word, join, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvwatch.check.reading.words import Lines

MAX_CHARACTERS = 65_536
"""Of one word: variables that double each other must not fill the memory."""


@dataclass(slots=True, kw_only=True)
class Variables:
    """What variables are set to; a list is bash's array."""

    values: dict[str, Word] = field(default_factory=dict)
    lists: dict[str, tuple[Word, ...]] = field(default_factory=dict)

    def put(self, name: str, value: Word) -> None:
        """Set a variable."""
        self.values[name] = value
        self.lists.pop(name, None)


def expand(
    token: Token, variables: Variables, file: str, lines: Lines, *, one: bool = False, assigns: bool = False
) -> tuple[Word, ...]:
    """Return the words that a token stands for, as the shell expands and splits it.

    `one`: it is not split, as behind `NAME=` and in compose's values. `assigns`: `${NAME:=value}` sets NAME.
    """
    return _Expander(variables, file, lines, one=one, assigns=assigns).words(token.pieces)


def value_of(token: Token, variables: Variables, file: str, lines: Lines) -> Word:
    """Return the one word that a token stands for."""
    words = expand(token, variables, file, lines, one=True)
    return words[0] if words else Word(text="", place=Place(file=file, line=lines(token.offset)))


class _Expander:
    def __init__(self, variables: Variables, file: str, lines: Lines, *, one: bool, assigns: bool) -> None:
        self.variables = variables
        self.file = file
        self.lines = lines
        self.one = one
        self.assigns = assigns
        self.done: list[Word] = []
        self.parts: list[Word] = []
        self.size = 0

    def words(self, pieces: Iterable[Piece]) -> tuple[Word, ...]:
        pieces = tuple(pieces)
        for piece in pieces:
            self._take(piece)
        self._finish()
        only = pieces[0] if len(pieces) == 1 else None
        if only is not None and len(self.done) == 1 and not self.one:
            word = self.done[0]
            # Alone and without quotes it may be no word or ten; `"$@"` may, too.
            if word.unresolved and only.kind is not Kind.TEXT and (not only.quoted or only.many):
                value = self.variables.values.get(only.text) if only.kind is Kind.VARIABLE else None
                is_value = value is not None and not value.open
                return (word,) if is_value else (replace(word, open=True),)
        return tuple(self.done)

    def _take(self, piece: Piece) -> None:
        place = Place(file=self.file, line=self.lines(piece.offset))
        if piece.kind is Kind.TEXT:
            self._add(Word(text=piece.text, place=place))
        elif piece.kind is Kind.OPAQUE:
            self._add(unknown(piece.written, place))
        elif piece.many and piece.text in self.variables.lists:
            self._take_list(self.variables.lists[piece.text])
        else:
            self._take_value(piece, place)

    def _take_list(self, items: tuple[Word, ...]) -> None:
        for index, item in enumerate(items):
            if index and not self.one:
                self._finish()
            elif index:
                self._add(Word(text=" ", place=item.place))
            self._add(item)
            if item.open and not self.one:
                self.done.append(item)
                self.parts = []

    def _take_value(self, piece: Piece, place: Place) -> None:
        value = self._value(piece, place)
        if piece.quoted or self.one or value.unresolved:
            self._add(value)
            return
        # Without quotes a value is split at its spaces.
        fields = value.text.split()
        if fields and value.text[:1].isspace() and self.parts:
            self._finish()
        for index, text in enumerate(fields):
            if index:
                self._finish()
            self._add(Word(text=text, place=value.place))
        if fields and value.text[-1:].isspace():
            self._finish()

    def _value(self, piece: Piece, place: Place) -> Word:
        """Return what `$NAME` or `${NAME:-default}` stands for."""
        known = self.variables.values.get(piece.text)
        if known is None and piece.text in self.variables.lists:
            items = self.variables.lists[piece.text]
            known = join([replace(item, open=False) for item in items[:1]]) if items else None
        kind = piece.operator.removeprefix(":")
        is_set = known is not None and (known.text != "" or not piece.operator.startswith(":"))
        if kind == "+":
            if known is None:
                # Whether it is set outside of the files is not known.
                return unknown(piece.written, place)
            return self._argument(piece, place) if is_set else Word(text="", place=place)
        if known is not None and is_set:
            return known
        if kind in ("-", "="):
            value = self._argument(piece, place)
            if kind == "=" and self.assigns:
                self.variables.put(piece.text, value)
            return value
        return known if known is not None and not kind else unknown(piece.written, place)

    def _argument(self, piece: Piece, place: Place) -> Word:
        inner = _Expander(self.variables, self.file, self.lines, one=True, assigns=self.assigns)
        words = inner.words(piece.argument)
        return words[0] if words else Word(text="", place=place)

    def _add(self, word: Word) -> None:
        self.size += len(word.text)
        if self.size > MAX_CHARACTERS:
            word = unknown("a value that is too long", word.place)
        self.parts.append(word)

    def _finish(self) -> None:
        if self.parts:
            self.done.append(join(self.parts))
        self.parts = []


def with_environment(environ: Mapping[str, Word]) -> Variables:
    """Return an environment as variables."""
    return Variables(values=dict(environ))
