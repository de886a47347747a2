"""Two servers behind one name: their configurations take turns from step to step. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.observation import Observation, Setup

_IDENTITY = ("model", "model_hash", "version", "fingerprint", "bytes_per_block")
_RETURNS = 2


def alternates(steps: Sequence[Observation]) -> bool:
    """Tell whether configurations came back twice: more than a deploy that was taken back."""
    seen: list[Setup] = []
    returns = 0
    for one in steps:
        if one.usable_blocks is None or (seen and not _differs(seen[-1], one.setup)):
            continue
        returns += any(not _differs(old, one.setup) for old in seen)
        seen.append(one.setup)
    return returns >= _RETURNS


def _differs(one: Setup, other: Setup) -> bool:
    """Tell whether what both state is not the same; what only one states proves nothing."""
    pairs = ((getattr(one, name), getattr(other, name)) for name in _IDENTITY)
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)
