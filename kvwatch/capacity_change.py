"""What a server's capacity did since a baseline, as the daemon itself found from its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityChange:
    """One server against one baseline, the answer of `kvwatch triage`; None is unknown."""

    server: str
    baseline: str
    """1d, 7d or start."""
    at: float
    """Unix seconds of the end of the window of now."""
    ratio: float | None
    """C now / C then, of typical requests."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Natural logarithms that add up to that of the ratio; all of them or none."""
    cause: str
    """Of the closed list in docs/triage.md."""
    confidence: str
    headline: str
    evidence: tuple[str, ...] = ()
    levers: tuple[str, ...] = ()
    deployed: bool | None = None
    """Whether it started again, or its configuration or version changed, since the baseline."""
