"""In which order servers stand, and which of them are shown. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kvwatch.top.views import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.top.views import Server

_TROUBLE = {kind: at for at, kind in enumerate(Kind)}


class Sort(StrEnum):
    """What comes first."""

    WORST = "worst"
    NAME = "name"
    POOL = "pool"
    """The fullest."""
    FITS = "fits"
    """That can take fewest."""
    WAITING = "waiting"
    RECOMPUTE = "recompute"


def sorted_servers(servers: Sequence[Server], sort: Sort, *, backwards: bool) -> list[Server]:
    """Return the servers in order; those whose figure is not known come first: they may be the worst."""
    by_name = sorted(servers, key=lambda server: server.name)
    ordered = sorted(by_name, key=_KEYS[sort])
    return ordered[::-1] if backwards else ordered


def matches(server: Server, filter_text: str) -> bool:
    """Tell whether every word of a filter is in the name, model, engine, address or state of a server."""
    facts = (server.name, server.model, server.engine, server.url, server.kind, server.why)
    text = " ".join(fact for fact in facts if fact).lower()
    return all(word in text for word in filter_text.lower().split())


def _worst(server: Server) -> tuple[Any, ...]:
    return server.severity, _TROUBLE[server.kind], -(server.total("waiting") or 0), _room(server)


def _room(server: Server) -> float:
    """Return which part of what a server could ever hold it can still take: three of three is calm."""
    fits, limit = server.fit("guaranteed"), server.fit("resident_limit")
    if fits is None or not limit:
        return 0.0
    return fits / limit


def _most(value: float | None) -> tuple[bool, float]:
    return (value is not None, -(value or 0))


_KEYS: Mapping[Sort, Callable[[Server], Any]] = {
    Sort.WORST: _worst,
    Sort.NAME: lambda server: server.name,
    Sort.POOL: lambda server: _most(server.usage_ratio),
    Sort.FITS: lambda server: (server.fit("guaranteed") is not None, server.fit("guaranteed") or 0),
    Sort.WAITING: lambda server: _most(server.total("waiting")),
    Sort.RECOMPUTE: lambda server: _most(server.total("suspected")),
}
