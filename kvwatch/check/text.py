"""A check as people read it: one finding a paragraph, then the cards."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kvwatch.byte_sizes import size
from kvwatch.check.declaration import Card
from kvwatch.check.document import cards, pool_of
from kvwatch.check.evidence import gather
from kvwatch.findings.words import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.check.declaration import Declaration, Place
    from kvwatch.check.verdict import Finding

_WIDTH = 110


def render_text(declaration: Declaration, findings: Sequence[Finding]) -> str:
    """Return a check for a terminal."""
    parts = [
        _paragraph(f"{where(problem.place)}: not read: ", problem.message) for problem in declaration.problems
    ]
    counted = [finding for finding in findings if finding.ignored is None]
    parts += [
        _paragraph(f"{where(finding.place)}: {finding.severity}: ", f"{finding.message} [{finding.rule}]")
        for finding in counted
    ]
    parts += [
        _paragraph(f"{where(finding.place)}: ignored: ", f"{finding.rule}: {finding.ignored}")
        for finding in findings
        if finding.ignored is not None
    ]
    evidence = gather(declaration)
    parts += [
        _pool(server.name, pool)
        for server in declaration.servers
        if (pool := pool_of(evidence, server.name)) is not None and pool["size_bytes"] is not None
    ]
    parts += [_card(card) for card in cards(evidence)]
    return "".join(f"{part}\n" for part in [*parts, _last(declaration, counted)])


def where(place: Place) -> str:
    """Return a place as editors and terminals read it."""
    return place.file if place.line is None else f"{place.file}:{place.line}"


def _paragraph(lead: str, message: str) -> str:
    return textwrap.fill(
        lead + message,
        width=_WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _pool(name: str, pool: dict[str, Any]) -> str:
    """Return a server's pool in a line: how many of its longest requests it holds together."""
    most = "" if pool["exact"] else "at most "
    text = f"{name}: a pool of {most}{size(pool['size_bytes'])}"
    if pool["resident_limit"] is None or pool["full_length_tokens"] is None:
        return text
    held = count(pool["resident_limit"], "request")
    text += f" holds {most}{held} of {pool['full_length_tokens']:,} tokens"
    printed = pool.get("max_concurrency")
    return text if printed is None or printed < 1 else f"{text} (vLLM prints {most}{printed:.2f}x)"


def _card(card: dict[str, object]) -> str:
    total, whole, least = card["total_bytes"], card["share_sum"], card["share_sum_at_least"]
    memory = f", {size(total)}" if isinstance(total, int) else ""
    names = card["servers"]
    servers = ", ".join(names) if isinstance(names, list) and names else "no server"
    claimed = f"{whole:.2f}" if isinstance(whole, float) else f"at least {least:.2f}"
    title = Card(name=str(card["name"])).title
    return f"{title}{memory}: {servers}: {claimed} of it claimed, limit {card['share_limit']:.2f}"


def _last(declaration: Declaration, findings: Sequence[Finding]) -> str:
    servers = count(len(declaration.servers), "server")
    counts = {
        severity: sum(finding.severity == severity for finding in findings)
        for severity in ("error", "warning", "note")
    }
    if not any(counts.values()):
        return f"{servers} checked: nothing found"
    found = ", ".join(count(number, name) for name, number in counts.items() if number)
    return f"{servers} checked: {found}. What each means: kvwatch help RULE"
