"""Options that stand for a field of `Launch`, and the statements made with them, the last one winning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvwatch.flags.launch import Launch
from kvwatch.flags.secrets import HIDDEN, says_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option in all its spellings; `read` is None for a flag, which makes the field `value`."""

    field: str
    names: tuple[str, ...]
    read: Callable[[str], object] | None = None
    value: bool = True
    negatives: tuple[str, ...] = ()
    """Spellings that make the field the opposite."""
    variable: str | None = None
    many: bool = False
    """The field is a tuple of all values given."""


@dataclass(slots=True, kw_only=True)
class Statements:
    """What has been said so far; a field may be in doubt, and then no default stands for it."""

    values: dict[str, Any] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    unknown: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def state(self, option: Option, words: tuple[str, ...], *, negated: bool = False) -> None:
        """Take an option with its values; a word that cannot be read leaves the field stated and None."""
        try:
            self.put(option.field, _meaning(option, words, negated=negated))
        except ValueError as error:
            self.put(option.field, None)
            self.notes.append(f"{option.names[0]}: {error}")

    def put(self, name: str, value: object) -> None:
        """State a field's value."""
        self.values[name] = value
        self.doubtful.discard(name)

    def take_back(self, option: Option) -> None:
        """Take an option that was given as if it had not been."""
        self.values.pop(option.field, None)
        self.doubtful.discard(option.field)

    def doubt(self, fields: Iterable[str], note: str) -> None:
        """Take back what is known of fields: something that cannot be read may have changed them."""
        for name in fields:
            self.values.pop(name, None)
            self.doubtful.add(name)
        self.notes.append(note)

    def keep(self, tokens: tuple[str, ...]) -> None:
        """Keep an option that no field stands for, unless it may hold a secret."""
        secret = says_secret(tokens[0].partition("=")[0]) or any(HIDDEN in token for token in tokens)
        if not secret:
            self.unknown.append(tokens)

    def launch(self, engine: str, defaults: Mapping[str, Any]) -> Launch:
        """Make the launch: what was stated, then the defaults of what was neither stated nor in doubt."""
        applied = {
            name: value
            for name, value in defaults.items()
            if name not in self.values and name not in self.doubtful
        }
        return Launch(
            engine=engine,
            stated=frozenset(self.values),
            defaulted=frozenset(applied),
            unknown=tuple(self.unknown),
            notes=tuple(dict.fromkeys(self.notes)),
            **self.values,
            **applied,
        )


def _meaning(option: Option, words: tuple[str, ...], *, negated: bool) -> object:
    if option.read is None:
        return option.value is not negated
    if not words:
        raise ValueError("no value")
    if any(HIDDEN in word for word in words):
        raise ValueError("not readable")
    return tuple(option.read(word) for word in words) if option.many else option.read(words[-1])
