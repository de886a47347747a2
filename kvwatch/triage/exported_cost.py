"""What a token takes by the exported figures alone: what is left where the groups are not known. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.observation import Observation


def blocks_per_token(one: Observation) -> float | None:
    """Return R(typical) / typical length, by the capacity of typical requests that was exported."""
    if one.usable_blocks is None or not one.typical_capacity:
        return None
    if one.typical_prompt_tokens is None or one.typical_generation_tokens is None:
        return None
    tokens = one.typical_prompt_tokens + one.typical_generation_tokens
    return one.usable_blocks / one.typical_capacity / tokens if tokens > 0 else None


def blocks_per_full_token(one: Observation) -> float | None:
    """Return R(full length) / full length."""
    resident, full = one.setup.resident_blocks, one.setup.full_length_tokens
    return resident / full if resident and full else None
