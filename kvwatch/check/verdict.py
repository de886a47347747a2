"""What a check found. Pure values; `severity` is a finding's word."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.check.declaration import Place


class Severity(StrEnum):
    """How bad: an error will not start or must fail; a warning may; a note is a thing to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        rule: an id such as `shares-over-limit`; its page is `docs/checks/ID.md`.
        message: what is wrong, with the arithmetic, and the edit that would mend it.
        numbers: what the arithmetic used, by name with its unit: `share_sum_ratio`, `pool_bytes`.
        ignored: the reason that the file gives for leaving it out; None = it counts.

    """

    rule: str
    severity: Severity
    message: str
    place: Place
    card: str | None = None
    servers: tuple[str, ...] = ()
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    ignored: str | None = None
