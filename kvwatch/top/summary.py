"""The first lines: what a reader should know before anything else. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.findings.words import count
from kvwatch.top.cells import Style
from kvwatch.top.views import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.top.views import Server, View

_NAMED = 3


def summary(view: View) -> tuple[str, Style]:
    """Return the sentences on all servers, the worst first, and how bad it is."""
    servers = view.servers
    if not servers:
        return f"No server is watched. {view.search}".strip(), Style.UNKNOWN
    of = {kind: [server for server in servers if server.kind is kind] for kind in Kind}
    silent, full, unknown, asleep = of[Kind.SILENT], of[Kind.FULL], of[Kind.UNKNOWN], of[Kind.ASLEEP]
    sentences = []
    if silent:
        sentences.append(f"{_names(silent)} {'does' if len(silent) == 1 else 'do'} not answer{_why(silent)}.")
    crowded = [server for server in full if server.full_if_all_grow]
    full = [server for server in full if not server.full_if_all_grow]
    if full:
        sentences.append(f"{_names(full)} cannot take one more full-length request{_why(full)}.")
    if crowded:
        sentences.append(
            f"{_names(crowded)} cannot promise one more full-length request: those running may fill the pool."
        )
    if unknown:
        sentences.append(f"What {_names(unknown)} can take is unknown{_why(unknown)}.")
    if asleep:
        sentences.append(f"{_names(asleep)} {'sleeps' if len(asleep) == 1 else 'sleep'}.")
    opened = len(of[Kind.OPEN])
    if opened == len(servers):
        each = {1: f"{servers[0].name} answers and", 2: "Both servers answer; each"}
        sentences.append(
            f"{each.get(opened, f'All {opened} servers answer; each')} can take one more full-length request."
        )
    elif opened:
        sentences.append(f"{count(opened, 'server')} can take one more full-length request.")
    return " ".join(sentences), _style(bad=silent or full, warn=crowded, unknown=unknown or asleep)


def _style(*, bad: Sequence[Server], warn: Sequence[Server], unknown: Sequence[Server]) -> Style:
    return Style.BAD if bad else Style.WARN if warn else Style.UNKNOWN if unknown else Style.GOOD


def _why(servers: Sequence[Server]) -> str:
    """Return the reasons of servers with the same state, each once."""
    reasons = [*dict.fromkeys(server.why for server in servers if server.why)]
    return f": {'; '.join(reasons[:_NAMED])}" if reasons else ""


def _names(servers: Sequence[Server]) -> str:
    names = [server.name for server in servers[:_NAMED]]
    more = len(servers) - len(names)
    if more:
        return f"{', '.join(names)} and {more} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
