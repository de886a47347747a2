"""The rule about capacity over days, from what triage found in the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.findings.rule import Condition, Evidence, Unknown, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

_HALF = 0.5
_EDGE = "no_change"
"""A mean length that only crossed the edge of a block: its ratio is no loss."""
_DAYS = ("1d", "7d")


def capacity_halved(evidence: Evidence) -> Iterator[Verdict]:
    """Find servers that hold half of what they did, though nobody started or configured them anew."""
    changes = [one for one in evidence.snapshot.capacity_changes if one.baseline in _DAYS]
    for server in sorted({one.server for one in changes}):
        own = [one for one in changes if one.server == server]
        known = [(one.ratio, one) for one in own if one.ratio is not None]
        halved = [
            (ratio, one)
            for ratio, one in known
            if ratio <= _HALF and one.deployed is False and one.cause != _EDGE
        ]
        if halved:
            ratio, worst = min(halved, key=lambda found: found[0])
            yield Condition(
                server=server,
                summary=(
                    f"{server} holds {ratio:.0%} of the typical requests that it held"
                    f" {'a day' if worst.baseline == '1d' else 'a week'} ago, with no deploy: {worst.cause}"
                ),
                detail="The same users fill the pool earlier: requests queue or are preempted.",
                next_step=f"kvwatch triage --server {server} --baseline {worst.baseline}",
            )
        elif not known:
            yield Unknown(server=server, why=own[0].headline)
