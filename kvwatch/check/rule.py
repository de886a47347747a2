"""A rule of `kvwatch check`: an id, what it is about, and a pure function that finds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kvwatch.check.declaration import Place
    from kvwatch.check.evidence import Evidence
    from kvwatch.check.verdict import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One thing that a rule found; `severity` only where it is not the rule's own."""

    message: str
    place: Place
    severity: Severity | None = None
    card: str | None = None
    servers: tuple[str, ...] = ()
    numbers: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table; `docs/checks/ID.md` explains it."""

    id: str
    severity: Severity
    summary: str
    """What is wrong where it holds, in half a sentence."""
    judge: Callable[[Evidence], Iterator[Hit]]
