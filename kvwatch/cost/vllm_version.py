"""Which planner rules a vLLM release follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """The rules of one release that changed between releases."""

    counts_batches: bool
    """Windows reserve for every batch in flight (0.26.0), not for one."""
    group_tolerance: float
    """The largest bucket of layers below this multiple of the smallest sets the group size; 0: never."""
    aligned_states: bool
    """With prefix caching a recurrent group holds a second state (0.15.0)."""
    null_block_reserved: bool
    """The startup check keeps the null block apart (0.29.0)."""


def rules_of(version: tuple[int, ...]) -> EngineRules:
    """Return the rules of a release."""
    return EngineRules(
        counts_batches=version >= (0, 26),
        group_tolerance=1.5 if version >= (0, 18, 1) else 1.25 if version >= (0, 12) else 0.0,
        aligned_states=version >= (0, 15),
        null_block_reserved=version >= (0, 29),
    )
