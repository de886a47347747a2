"""Values out of a foreign JSON document: what is absent, of another type or absurd is None. Pure.

A string that comes out of here is safe for a terminal: one line, with all that is not printable written as
an escape. Nothing else may bring foreign text into a view.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 2.0**63
_LONGEST = 2000
"""Characters of one string; a detail of an error is shorter."""


def number(value: Any) -> float | None:
    """Return a finite number; None for anything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _LARGEST and not math.isnan(value) else None


def whole(value: Any) -> int | None:
    """Return a whole number; None for anything else."""
    read = number(value)
    return int(value) if read is not None and read.is_integer() else None


def ratio(value: Any) -> float | None:
    """Return a number from 0 to 1; None for anything else."""
    read = number(value)
    return read if read is not None and 0 <= read <= 1 else None


def word(value: Any) -> str | None:
    """Return a string that a terminal takes for text and nothing else; None for what is no string."""
    if not isinstance(value, str):
        return None
    text = value[:_LONGEST]
    return text if text.isprintable() else "".join(map(_escaped, text))


def text(value: Any) -> str:
    """Return a string as `word` does; an empty one for what is none."""
    return word(value) or ""


def fields(value: Any) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a JSON list; an empty list for anything else."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def words(value: Any) -> tuple[str, ...]:
    """Return the strings of a JSON list."""
    return tuple(text(item) for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _escaped(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]
