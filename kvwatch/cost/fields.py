"""Typed reading of a model's config.json: every field by name, a missing one refused by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvwatch.cost.spec import ModelSpecError
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Fields:
    """A config object with the defaults of its class, read field by field.

    A class default counts only where the file has none of the names: a null in the file stays a null.
    """

    architecture: str
    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def get(self, *names: str) -> Any:
        """Return the first of the named fields that is not null, else None."""
        for source in (self.values, self.defaults):
            stated = [source[name] for name in names if name in source]
            if stated:
                return next((value for value in stated if value is not None), None)
        return None

    def missing(self, name: str, detail: str = "") -> ModelSpecError:
        """Return the error that refuses this model for a field."""
        return ModelSpecError(Reason.MISSING_FIELD, architecture=self.architecture, field=name, detail=detail)

    def optional(self, *names: str) -> int | None:
        """Return a whole number, or None where no name is present."""
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise self.missing(names[0], f"{value!r} is not a whole number")
        return int(value)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return a whole number of at least 1; `default` where no name is present."""
        value = self.optional(*names)
        if value is None:
            value = default
        if value is None:
            raise self.missing(names[0])
        if value < 1:
            raise self.missing(names[0], f"{value} is not positive")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number, `default` where absent."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.missing(name, f"{value!r} is not a number")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a true-or-false field, `default` where absent."""
        value = self.get(name)
        return default if value is None else bool(value)

    def text(self, *names: str) -> str | None:
        """Return a string field, None where absent."""
        value = self.get(*names)
        return value if isinstance(value, str) else None

    def items(self, *names: str) -> Sequence[Any] | None:
        """Return a list field, None where absent."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise self.missing(names[0], "not a list")
        return value

    def listed(self, count: int, *names: str) -> Sequence[Any]:
        """Return a list field with one entry for each of `count` layers; longer lists are cut."""
        value = self.items(*names)
        if value is None:
            raise self.missing(names[0])
        if len(value) < count:
            raise self.missing(names[0], f"{len(value)} entries for {count} layers")
        return value[:count]

    def nested(self, *names: str) -> Fields:
        """Return a nested object; a missing one is refused by its name."""
        value = self.get(*names)
        if not isinstance(value, dict):
            raise self.missing(names[0])
        return Fields(self.architecture, value)
