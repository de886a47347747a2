"""All servers' verdicts for a terminal, an incident channel and programs: worst first, then the fleet."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kvwatch.triage.document import verdict_document
from kvwatch.triage.markdown import render_markdown
from kvwatch.triage.sentences import effect, number
from kvwatch.triage.text import FULL, WIDTH, factor_lines, render_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.triage.fleet import Fleet
    from kvwatch.triage.text import Glyphs


def fleet_document(fleet: Fleet) -> dict[str, Any]:
    """Return everything that is known of all servers; null is unknown."""
    return {
        "fleet": {
            "servers": len(fleet.verdicts),
            "counted": fleet.counted,
            "changed": fleet.changed,
            "cannot_tell": fleet.untold,
            "typical_capacity_then": fleet.capacity_then,
            "typical_capacity_now": fleet.capacity_now,
            "ratio": fleet.ratio,
            "factors": dict(fleet.factors.items()),
        },
        "servers": [verdict_document(verdict) for verdict in fleet.verdicts],
    }


def render_fleet(fleet: Fleet, glyphs: Glyphs = FULL) -> str:
    """Return one line a server, the fleet's factors, and the worst server in full where one changed."""
    lines = [*_summary(fleet), "", *_servers(fleet)]
    if fleet.counted > 1:
        lines += ["", *factor_lines(fleet.factors, glyphs)]
    text = "\n".join(lines) + "\n"
    worst = fleet.verdicts[0]
    if worst.exit_code == 1:
        text += f"\n{'=' * WIDTH}\n{render_text(worst, glyphs)}"
    if len(fleet.verdicts) > 1:
        text += "\nMore of one of them: kvwatch triage --server NAME\n"
    return text


def render_fleet_markdown(fleet: Fleet) -> str:
    """Return the same for an incident channel; the worst server in full where one changed."""
    lines = [f"**{' '.join(_summary(fleet))}**", ""]
    lines += ["| server | cause | confidence | capacity |", "|---|---|---|---:|"]
    lines += [
        f"| {verdict.server.replace('|', '')} | `{verdict.cause}` | {verdict.confidence} |"
        f" {effect(verdict.factors.log_ratio)} |"
        for verdict in fleet.verdicts
    ]
    text = "\n".join(lines) + "\n"
    worst = fleet.verdicts[0]
    return f"{text}\n{render_markdown(worst)}" if worst.exit_code == 1 else text


def _summary(fleet: Fleet) -> Iterator[str]:
    count = len(fleet.verdicts)
    told = f"Of {count} server{'s' if count != 1 else ''} {fleet.changed} changed"
    if fleet.untold:
        told += f", of {fleet.untold} it cannot be told"
    told += "."
    if fleet.counted and fleet.ratio is not None:
        now, then = (number(_tenth(value)) for value in (fleet.capacity_now, fleet.capacity_then))
        change = effect(fleet.factors.log_ratio)
        told += f" Room for typical requests, all together: {now} now, {then} then ({change})."
    yield from textwrap.wrap(told, WIDTH)


def _tenth(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _servers(fleet: Fleet) -> Iterator[str]:
    width = min(28, max(len(verdict.server) for verdict in fleet.verdicts))
    yield f"{'server':{width}}  {'capacity':>10}  cause"
    for verdict in fleet.verdicts:
        capacity = effect(verdict.factors.log_ratio)
        yield f"{verdict.server:{width}}  {capacity:>10}  {verdict.cause} ({verdict.confidence})"
