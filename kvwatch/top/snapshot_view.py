"""A snapshot's document as a view. Pure; survives any document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.top.card_view import cards_of, labels_of
from kvwatch.top.fields import fields, number, rows, text, whole, word, words
from kvwatch.top.server_view import SEVERITIES, server_of
from kvwatch.top.views import Finding, Gap, View
from kvwatch.top.why import because, no_cards, sources_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_BASELINES = {"1d": "since yesterday", "7d": "since last week", "start": "since its start"}
_SILENT_CAUSES = ("no_change", "not_enough_data")


def view_of(document: Mapping[str, Any]) -> View:
    """Return what a snapshot's document says; what it does not say is unknown."""
    labels = labels_of(document)
    findings = tuple(
        sorted(
            (_finding(row, labels) for row in rows(document.get("findings"))), key=lambda one: one.severity
        )
    )
    worst: dict[str, int] = {}
    for finding in findings:
        worst.setdefault(finding.server, finding.severity)
    servers = tuple(server_of(row, document, worst, labels) for row in rows(document.get("servers")))
    sources = rows(document.get("sources"))
    down = [source for source in sources if word(source.get("reason"))]
    return View(
        sequence=whole(document.get("sequence")),
        version=text(document.get("version")),
        taken_at=number(document.get("taken_at")),
        interval_seconds=number(document.get("interval_seconds")),
        stale=document.get("stale") is True,
        servers=servers,
        cards=cards_of(document),
        cards_why=no_cards(document),
        findings=findings,
        changes=tuple(
            (text(change.get("server")), _change(change))
            for change in rows(document.get("capacity_changes"))
            if text(change.get("cause")) not in _SILENT_CAUSES
        ),
        gaps=(
            *(_gap(source) for source in down if source.get("reason") != "not_enabled"),
            *(_lacking(row) for row in rows(document.get("servers")) if _missing(row)),
        ),
        not_enabled=tuple(_gap(source) for source in down if source.get("reason") == "not_enabled"),
        unjudged=tuple(
            Gap(
                what=text(one.get("rule")),
                server=text(one.get("server")) or text(one.get("device")),
                why=text(one.get("why")),
            )
            for one in rows(document.get("unjudged"))
        ),
        search=next((text(one.get("detail")) for one in sources_of(document, "discovery")), ""),
    )


def _finding(row: Mapping[str, Any], labels: Mapping[str, str]) -> Finding:
    severity = text(row.get("severity"))
    return Finding(
        # One that this version does not know is not made light of.
        severity=SEVERITIES.index(severity) if severity in SEVERITIES else 0,
        rule=text(row.get("rule")),
        server=text(row.get("server")),
        card=labels.get(str(row.get("device")), text(row.get("device"))),
        summary=text(row.get("summary")),
        detail=text(row.get("detail")),
        next_step=text(row.get("next_step")),
        since=number(row.get("since")),
    )


def _change(row: Mapping[str, Any]) -> str:
    baseline = text(row.get("baseline"))
    return f"{_BASELINES.get(baseline, baseline)}: {text(row.get('headline'))}"


def _gap(source: Mapping[str, Any]) -> Gap:
    target = text(source.get("target"))
    return Gap(
        what=f"{text(source.get('source'))} {target}".strip(),
        server=target,
        why=because(source),
        last_at=number(source.get("last_success_at")),
    )


def _missing(server: Mapping[str, Any]) -> tuple[str, ...]:
    return words(fields(server.get("reading")).get("missing"))


def _lacking(server: Mapping[str, Any]) -> Gap:
    name = text(fields(server.get("target")).get("name"))
    return Gap(
        what=f"page of {name}",
        server=name,
        why=f"it should state and does not: {', '.join(_missing(server))}",
    )
