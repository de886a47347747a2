"""A plan file's plain values as cards and servers; pure, whoever read the YAML.

ceiling: 0.95
cards: {a40: 46068MiB}
servers:
  - {name: chat, measured: 26358MiB, kv: 6.26GiB, tokens: 184260}
  - {name: embed, model: /models/embed, length: 8192, concurrency: 1, log: embed.log}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.planning.errors import SpecificationError
from kvwatch.planning.question import DEFAULT_CEILING
from kvwatch.planning.specification import (
    Request,
    cards_of,
    ceiling_of,
    checked_name,
    footprint_of,
    values_of,
)

if TYPE_CHECKING:
    from kvwatch.planning.question import Card

_KEYS = {"ceiling", "cards", "servers"}
_MEASURED = ("kv", "tokens")


def plan_of(value: Any) -> tuple[tuple[Card, ...], tuple[Request, ...]]:
    """Return the cards and servers of a plan file; raises SpecificationError that names the place."""
    if not isinstance(value, dict) or set(value) - _KEYS:
        strange = sorted(map(str, set(value) - _KEYS)) if isinstance(value, dict) else ["no mapping"]
        raise SpecificationError(f"{', '.join(strange)}: a plan has the keys ceiling, cards, servers")
    ceiling = ceiling_of(_text(value["ceiling"])) if "ceiling" in value else DEFAULT_CEILING
    cards = value.get("cards")
    if not isinstance(cards, dict) or not cards:
        raise SpecificationError("cards: a mapping of names to sizes, such as {a40: 46068MiB}")
    servers = value.get("servers")
    if not isinstance(servers, list) or not servers:
        raise SpecificationError("servers: a list of mappings, such as - {name: chat, measured: 26358MiB}")
    return (
        cards_of([f"{name}={_text(size)}" for name, size in cards.items()], ceiling),
        tuple(_request(entry, f"servers[{at}]") for at, entry in enumerate(servers)),
    )


def _request(entry: Any, place: str) -> Request:
    if not isinstance(entry, dict) or "name" not in entry:
        raise SpecificationError(f"{place}: a mapping with a name")
    texts = {str(key): _text(value) for key, value in entry.items()}
    name = checked_name(texts.pop("name"))
    model, log, measured = (texts.pop(key, None) for key in ("model", "log", "measured"))
    parts = {key: texts.pop(key) for key in _MEASURED if key in texts}
    if parts and measured is None:
        raise SpecificationError(f"{place}: {min(parts)} is of a measurement; add measured: SIZE")
    return Request(
        name=name,
        model=model,
        values=values_of(texts, place),
        footprint=None if measured is None else footprint_of(place, measured, parts),
        log=log,
    )


def _text(value: Any) -> str:
    """Return a scalar as it would be written on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "+".join(map(str, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise SpecificationError("a value is missing, or is a mapping where text or a number is meant")
