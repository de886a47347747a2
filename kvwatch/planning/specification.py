"""How cards, servers and measurements are written: on the command line, and as values of a plan file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kvwatch.config_values import RefusedValueError, parse_name, parse_size
from kvwatch.planning.errors import SpecificationError
from kvwatch.planning.footprint import Footprint, check_footprint
from kvwatch.planning.keys import KEYS, parse_bytes, parse_count
from kvwatch.planning.question import Card

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COUNTED = re.compile(r"(?:([1-9][0-9]?)x)?(.+)", re.ASCII)
_FIGURE = re.compile(r"[0-9]+(?:\.([0-9]+))? ?([KMGT]iB)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A server as it was written: its model by name, and what was said of it by key."""

    name: str
    model: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    footprint: Footprint | None = None
    log: str | None = None


def cards_of(texts: Sequence[str], ceiling: float) -> tuple[Card, ...]:
    """Return the cards of `46068MiB`, `A40=46068MiB`, or `A40=2x46068MiB`: two, A40-0 and A40-1."""
    cards: list[Card] = []
    for text in texts:
        name, equals, amount = text.rpartition("=")
        label = checked_name(name) if equals else "card"
        match = _COUNTED.fullmatch(amount.strip())
        if match is None:
            raise SpecificationError(f"card {label}: no size; write --card {label}=46068MiB")
        total = parse_bytes(match[2].strip())
        if total <= 0:
            raise SpecificationError(f"card {label}: a card of nothing")
        names = [label] if match[1] is None else [f"{label}-{number}" for number in range(int(match[1]))]
        cards += [Card(name=one, total_bytes=total, ceiling_ratio=ceiling) for one in names]
    _distinct("cards", [card.name for card in cards])
    return tuple(cards)


def ceiling_of(text: str) -> float:
    """Return the part of a card that may be taken; above 0, at most 1."""
    try:
        ceiling = float(text)
    except ValueError:
        ceiling = 0.0
    if not 0 < ceiling <= 1:
        raise SpecificationError(f"{text!r} is no ceiling; allowed: above 0 and at most 1, such as 0.95")
    return ceiling


def split_entry(text: str) -> tuple[str | None, str, dict[str, str]]:
    """Return name, value and keys of `NAME=VALUE,key=value,...`; the name may be missing."""
    head, *rest = text.split(",")
    name, equals, value = head.partition("=")
    pairs = dict(part.partition("=")[::2] for part in rest)
    if any("=" not in part for part in rest) or len(pairs) != len(rest):
        raise SpecificationError(f"{text!r}: after the first comma come key=value, each once")
    return (checked_name(name), value, pairs) if equals else (None, name, pairs)


def values_of(pairs: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return what was said of a server, by key; hyphens and underscores are one."""
    values: dict[str, Any] = {}
    for written, text in pairs.items():
        name = written.strip().replace("-", "_")
        if name not in KEYS:
            raise SpecificationError(f"{place}: {written!r} is no key; known are {', '.join(KEYS)}")
        try:
            values[name] = KEYS[name].parse(text.strip())
        except SpecificationError as error:
            raise SpecificationError(f"{place}: {written}: {error}") from None
    return values


def footprint_of(place: str, total: str | None, pairs: Mapping[str, str]) -> Footprint:
    """Return a measurement such as `26358MiB` with `kv=6.26GiB` and `tokens=184260`.

    A cache printed with decimals is as exact as its last digit.
    """
    unknown = set(pairs) - {"kv", "tokens"}
    if unknown:
        raise SpecificationError(
            f"{place}: {min(unknown)!r} is no key of a measurement; known are kv, tokens"
        )
    kv = pairs.get("kv")
    try:
        footprint = Footprint(
            total_bytes=None if total is None else parse_bytes(total),
            kv_bytes=None if kv is None else parse_bytes(kv),
            kv_doubt_bytes=0 if kv is None else half_digit(kv),
            tokens=parse_count(pairs["tokens"]) if "tokens" in pairs else None,
        )
    except SpecificationError as error:
        raise SpecificationError(f"{place}: {error}") from None
    check_footprint(place, footprint)
    return footprint


def half_digit(text: str) -> int:
    """Return half of a printed size's last digit in bytes; 0 for whole bytes."""
    match = _FIGURE.fullmatch(text.strip())
    if match is None:
        return 0
    return int(Decimal(parse_size(f"1{match[2]}")) / (2 * 10 ** len(match[1] or "")))


def options_of(values: Mapping[str, Any], engine: str, place: str) -> dict[str, Any]:
    """Return an engine's options; raise SpecificationError for one of the other engine."""
    foreign = [name for name in values if KEYS[name].engine not in ("", engine)]
    if foreign:
        other = {"vllm": "llama-server, which loads a GGUF", "llamacpp": "vLLM, which loads no GGUF here"}
        raise SpecificationError(f"{place}: {', '.join(foreign)} belongs to {other[engine]}")
    return {KEYS[name].field: value for name, value in values.items() if KEYS[name].field}


def placed_on(request: Request, cards: Sequence[Card]) -> tuple[str, ...]:
    """Return the cards of a server's ranks: those it names, or all there are."""
    ranks = request.values.get("tp", 1) * request.values.get("pp", 1)
    named = request.values.get("on")
    names = [card.name for card in cards]
    if named is None:
        if request.model is None and len(names) > 1:
            raise SpecificationError(f"{request.name}: on which card is it? add on={names[0]}")
        if request.model is not None and len(names) != ranks:
            raise SpecificationError(
                f"{request.name}: {ranks} ranks and {len(names)} cards; give --card as often as there are"
                f" ranks (2x46068MiB is two), or say on={'+'.join(names[:ranks])}"
            )
        return tuple(names)
    missing = [name for name in named if name not in names]
    if missing:
        raise SpecificationError(
            f"{request.name}: there is no card {missing[0]}; there are {', '.join(names)}"
        )
    if request.model is not None and len(named) != ranks:
        raise SpecificationError(f"{request.name}: {ranks} ranks on {len(named)} cards; name one for each")
    return tuple(named)


def checked_name(text: str) -> str:
    """Return the name of a card or a server."""
    try:
        return parse_name(text.strip())
    except RefusedValueError as error:
        raise SpecificationError(str(error)) from None


def _distinct(what: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecificationError(f"two {what} are called {twice}; give each a name of its own")
