"""A running kvwatch as a source of cards and footprints: its `/api/v1/snapshot`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvwatch.sources.scrape import Scraper

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES = 32 << 20
_DEADLINE_SECONDS = 10.0
_PATH = "/api/v1/snapshot"


class LiveError(Exception):
    """Why a daemon gives no answer, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCard:
    """A device as a daemon sees it; `name` is its index, or the UUID of a MIG instance."""

    name: str
    uuid: str
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a daemon knows that a check can use.

    Attributes:
        footprints: server -> bytes that its processes hold besides its pool, on the card with the most.
        share_limit_ratio: as that daemon is configured.

    """

    cards: tuple[LiveCard, ...] = ()
    footprints: Mapping[str, int] = field(default_factory=dict)
    share_limit_ratio: float | None = None


def read_live(url: str) -> Live:
    """Ask the daemon at a base URL; raises LiveError."""
    page = asyncio.run(_fetch(url))
    if page.body is None:
        raise LiveError(f"{url}{_PATH}: {page.detail or page.reason}")
    try:
        document = json.loads(page.body)
    except (ValueError, RecursionError):
        raise LiveError(f"{url}{_PATH}: this is no JSON; is it the address of kvwatch?") from None
    if not isinstance(document, dict) or not isinstance(document.get("devices"), list):
        raise LiveError(f"{url}{_PATH}: this is no snapshot; is it the address of kvwatch?")
    return live_of(document)


async def _fetch(url: str) -> Any:
    scraper = Scraper(max_bytes=_MAX_BYTES)
    try:
        return await scraper.fetch(url, _PATH, deadline_seconds=_DEADLINE_SECONDS)
    finally:
        await scraper.close()


def live_of(document: Mapping[str, Any]) -> Live:
    """Return what a snapshot's document says; what has another shape is left out."""
    cards: list[LiveCard] = []
    for device in _mappings(document.get("devices")):
        reading = device.get("reading")
        if not isinstance(reading, dict) or reading.get("divided") is True:
            continue
        uuid, index = reading.get("uuid"), reading.get("index")
        if not isinstance(uuid, str) or not isinstance(index, int):
            continue
        is_part = isinstance(reading.get("parent_uuid"), str)
        total = _count(reading.get("total_bytes"))
        cards.append(LiveCard(name=uuid if is_part else str(index), uuid=uuid, total_bytes=total))
    limit = document.get("share_limit_ratio")
    return Live(
        cards=tuple(cards),
        footprints=dict(_footprints(document)),
        share_limit_ratio=limit if isinstance(limit, float) and 0 < limit <= 1 else None,
    )


def _footprints(document: Mapping[str, Any]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for server in _mappings(document.get("servers")):
        target, held = server.get("target"), server.get("device_bytes")
        pool = _count(server.get("pool_bytes"))
        if not isinstance(target, dict) or not isinstance(held, dict) or pool is None or not held:
            continue
        name = target.get("name")
        amounts = [_count(amount) for amount in held.values()]
        if isinstance(name, str) and all(amount is not None and amount >= pool for amount in amounts):
            found.append((name, max(amount for amount in amounts if amount is not None) - pool))
    return found


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
