"""A visit to one server: fetch the pages that its engine's adapter asks for, and read them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from kvwatch.engines import ADAPTERS, detect
from kvwatch.readings import Outcome, Page, Reason, Source, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.engines.adapter import Adapter
    from kvwatch.readings import EngineReading
    from kvwatch.sources.contract import PageSource
    from kvwatch.target import Hindrance, Target

log = logging.getLogger(__name__)

_TEXT_CHARACTERS = 1_024  # a model's name, its path, a setting
_MAX_PAGES = 8  # an adapter asks for three; more is a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What was fetched from a server, and how it was read."""

    pages: tuple[Page, ...]
    adapter: Adapter | None
    reading: EngineReading | None
    outcome: Outcome


async def visit(
    target: Target,
    source: PageSource,
    *,
    deadline_seconds: float,
    adapter: Adapter | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Visit:
    """Visit a server; a failure is an outcome, never an exception. All its pages share the deadline.

    `adapter` is the one that read the server's pages last time, where the configuration names none.
    """
    if target.hindrance is not None:
        return _unvisited(target, target.hindrance)
    started = clock()
    pages: dict[str, Page] = {}
    adapter = ADAPTERS[target.engine] if target.engine else adapter
    reading: EngineReading | None = None
    reason, detail = None, ""

    async def fetch(path: str) -> None:
        if path in pages or len(pages) >= _MAX_PAGES:
            raise SourceError(Reason.INTERNAL_ERROR, f"{path} was asked for again")
        pages[path] = await source.fetch(
            target.url,
            path,
            deadline_seconds=max(0.0, started + deadline_seconds - clock()),
            bearer_token_file=target.bearer_token_file,
            ca_file=target.ca_file,
        )

    try:
        while adapter is None:
            found = detect(pages)
            if isinstance(found, str):
                await fetch(found)
            else:
                adapter = found
        while (path := adapter.next_path(pages)) is not None:
            await fetch(path)
        reading = _shortened(adapter.read(pages))
    except SourceError as error:
        reason, detail = error.reason, error.detail
    except Exception as error:  # a bug in one adapter must not blind the other servers
        log.exception("server %s", target.name)
        reason, detail = Reason.INTERNAL_ERROR, repr(error)
    outcome = Outcome(
        source=Source.ENGINE,
        target=target.name,
        reason=reason,
        detail=detail,
        duration_seconds=clock() - started,
    )
    return Visit(pages=tuple(pages.values()), adapter=adapter, reading=reading, outcome=outcome)


def _shortened(reading: EngineReading) -> EngineReading:
    """Cut texts that no engine says: they become labels, and every scraper's and the history's burden."""
    texts: dict[str, Any] = {
        field.name: f"{text[:_TEXT_CHARACTERS]}..."
        for field in fields(reading)
        if isinstance(text := getattr(reading, field.name), str) and len(text) > _TEXT_CHARACTERS
    }
    settings = tuple((name, text[:_TEXT_CHARACTERS]) for name, text in reading.settings)
    return replace(reading, settings=settings, **texts) if texts or settings != reading.settings else reading


def _unvisited(target: Target, hindrance: Hindrance) -> Visit:
    """Return the visit that is not made."""
    outcome = Outcome(
        source=Source.ENGINE, target=target.name, reason=hindrance.reason, detail=hindrance.detail
    )
    return Visit(pages=(), adapter=None, reading=None, outcome=outcome)
