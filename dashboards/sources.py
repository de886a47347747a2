"""The table of sources, which says why something is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards import queries as q
from dashboards.fields import BAD, GOOD, NEUTRAL, words
from dashboards.tables import Column, table

if TYPE_CHECKING:
    from dashboards.panels import Panel

UP_OR_DOWN = words({"0": ("down", BAD), "1": ("up", GOOD)})


def sources_table(*, up: str, reason: str, age: str, title: str) -> Panel:
    """Return one row a source: never empty while a daemon answers, so that emptiness is not calm."""
    return table(
        title,
        [
            Column(title="State", expr=up, settings=UP_OR_DOWN),
            Column(title="Source", label="source"),
            Column(title="Target", label="target", settings={"custom.width": 320}),
            Column(
                title="Reason",
                label="reason",
                expr=reason,
                settings={"noValue": "-", "color": {"fixedColor": NEUTRAL, "mode": "fixed"}},
            ),
            Column(title="Since last success", expr=age, settings={"unit": "s", "noValue": "never"}),
            Column(title="Daemon", label="instance"),
            Column(title="Job", label="job"),
        ],
        description=(
            "Whatever is missing from other panels has its reason here. not_enabled is a choice, all else "
            "is a fault: look the reason up in docs/runbooks/KvwatchSourceDown.md. If this table says "
            "unknown, no daemon answers Prometheus: see docs/runbooks/KvwatchDaemonAbsent.md."
        ),
        sort_by="State",
    )


def fleet_sources() -> Panel:
    """Return the sources of all daemons."""
    return sources_table(
        up=q.SOURCE_UP, reason=q.SOURCE_REASON, age=q.SOURCE_AGE, title="Sources, those that are down first"
    )


def server_sources() -> Panel:
    """Return the sources of one server."""
    return sources_table(
        up=q.ONE_SOURCE_UP,
        reason=q.ONE_SOURCE_REASON,
        age=q.ONE_SOURCE_AGE,
        title="What is not known about this server, and why",
    )


def card_sources() -> Panel:
    """Return the sources of the daemons, since a card's figures come from several of them."""
    return sources_table(
        up=q.SOURCE_UP,
        reason=q.SOURCE_REASON,
        age=q.SOURCE_AGE,
        title="What is not known on these nodes, and why",
    )
