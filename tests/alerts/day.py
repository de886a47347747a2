"""The alerts of the demo's scripted day, in order; docs/demo.md tells the same to people."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.demo.day import CARD, CHAT


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A stretch of the day, and the alerts that begin to fire in it: (alert, server or device)."""

    start: str
    """As the demo's clock shows it."""
    fires: frozenset[tuple[str, str]] = frozenset()


def _chat(*alerts: str) -> frozenset[tuple[str, str]]:
    return frozenset((f"Kvwatch{alert}", CHAT) for alert in alerts)


SHORT_OF_ROOM = _chat("RecomputeSuspected", "Preemptions", "RequestsWaiting", "NoRoom")
NOT_READABLE = _chat("SourceDown") | {("KvwatchSourceDown", CARD.uuid)}
"""The server does not answer while it starts, and whose its process on the card is cannot be said either."""
DAY = (
    Moment(start="08:00", fires=_chat("CapacityHalved")),
    Moment(start="12:00", fires=SHORT_OF_ROOM),
    Moment(start="13:30"),
    Moment(start="16:00"),
    Moment(start="18:00", fires=NOT_READABLE),
    Moment(start="19:00", fires=_chat("PoolChangedSameFlags") | SHORT_OF_ROOM),
    Moment(start="21:00", fires=NOT_READABLE),
    Moment(start="00:00"),
)
"""Nothing begins in a moment that lists nothing, and nothing at all from midnight to the next noon."""
