"""All servers together: the same factors, exact for the sum of their capacities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.triage.decomposition import Factors
from kvwatch.triage.text import is_worse
from kvwatch.triage.verdict import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.triage.verdict import Verdict

_NAMES = ("pool", "cost_per_token", "prompt_length", "generation_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Servers of which C is known then and now, added up; the others are only counted."""

    verdicts: tuple[Verdict, ...]
    """Worst first."""
    counted: int
    capacity_then: float | None
    """Typical requests that all empty pools hold together, each of its own server's kind, unfloored."""
    capacity_now: float | None
    factors: Factors

    @property
    def ratio(self) -> float | None:
        """Return what the fleet holds now to what it held then."""
        if not self.capacity_then or self.capacity_now is None:
            return None
        return self.capacity_now / self.capacity_then

    @property
    def changed(self) -> int:
        """Return of how many servers something changed."""
        return sum(verdict.exit_code == 1 for verdict in self.verdicts)

    @property
    def untold(self) -> int:
        """Return of how many servers it cannot be told."""
        return sum(verdict.cause is Cause.NOT_ENOUGH_DATA for verdict in self.verdicts)

    @property
    def exit_code(self) -> int:
        """Return 1 where anything changed, else 3 where anything cannot be told, else 0."""
        return 1 if self.changed else 3 if self.untold or not self.verdicts else 0


def fleet_of(verdicts: Sequence[Verdict]) -> Fleet:
    """Add up servers.

    Each one's terms weigh as the logarithmic mean of its own capacities does beside that of the fleet's:
    then they add up to the logarithm of the fleet's ratio, to rounding (B. W. Ang, LMDI-I, Energy Policy
    2004).
    """
    pairs = [(pair, verdict.factors) for verdict in verdicts if (pair := _capacities(verdict)) is not None]
    ordered = tuple(sorted(verdicts, key=is_worse))
    if not pairs:
        return Fleet(verdicts=ordered, counted=0, capacity_then=None, capacity_now=None, factors=Factors())
    then, now = (math.fsum(pair[side] for pair, _ in pairs) for side in (0, 1))
    whole = _logarithmic_mean(then, now)
    terms = {
        name: math.fsum(
            _logarithmic_mean(*pair) / whole * (dict(factors.items())[name] or 0.0) for pair, factors in pairs
        )
        for name in _NAMES
    }
    return Fleet(
        verdicts=ordered,
        counted=len(pairs),
        capacity_then=then,
        capacity_now=now,
        factors=Factors(**terms),
    )


def _capacities(verdict: Verdict) -> tuple[float, float] | None:
    comparison = verdict.comparison
    if comparison is None or comparison.before is None or comparison.after is None:
        return None
    if comparison.factors.log_ratio is None:
        return None
    return comparison.before.capacity, comparison.after.capacity


def _logarithmic_mean(one: float, other: float) -> float:
    """Return (x - y) / (ln x - ln y), x where both are the same."""
    difference = one - other
    if abs(difference) <= 1e-9 * max(one, other):
        return (one + other) / 2
    return difference / math.log(one / other)
