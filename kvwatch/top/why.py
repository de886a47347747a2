"""Why something is not known, in words that say what to do where something can be done. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.top.fields import fields, rows, text, words

if TYPE_CHECKING:
    from collections.abc import Mapping

    Document = Mapping[str, Any]


def sources_of(document: Document, target: str, source: str | None = None) -> list[Document]:
    """Return the states of a target's sources, or of one of them."""
    return [
        row
        for row in rows(document.get("sources"))
        if row.get("target") == target and source in (None, row.get("source"))
    ]


def because(source: Document) -> str:
    """Return the reason of a source without an answer; empty where it gave one."""
    reason, detail = text(source.get("reason")), text(source.get("detail"))
    return f"{reason}: {detail}" if reason and detail else reason


def source_why(document: Document, source: str, target: str) -> str:
    """Return why one source of a target has no answer; empty where it gave one."""
    return next((because(row) for row in sources_of(document, target, source)), "")


def page_lacks(server: Document) -> str:
    """Return why a figure that a page should state is not known."""
    missing = words(fields(server.get("reading")).get("missing"))
    return f"the server's page lacks {', '.join(missing)}" if missing else "the server's page does not say"


def no_fits(document: Document, server: Document, name: str) -> str:
    """Return why a server's fits are not known."""
    engine = source_why(document, "engine", name)
    if engine:
        return engine
    if fields(server.get("reading")).get("sleeping") is True:
        return "sleeping: it has given its pool back, nothing fits until it wakes"
    if any(not fields(rank.get("full")) for rank in rows(server.get("ranks"))):
        return source_why(document, "model", name) or "unknown_pool: the server does not state its pool"
    return page_lacks(server)


def no_usage(server: Document, rank: Document) -> str:
    """Return why the use of a pool is not known."""
    if fields(server.get("reading")).get("sleeping") is True:
        return "sleeping: it has given its pool back"
    if not fields(fields(rank.get("reading")).get("slots")):
        return page_lacks(server)
    if fields(server.get("target")).get("pool_tokens") is not None:
        return "not_found: /slots was not read, so what the busy slots hold is not known"
    return "unknown_pool: no page states the pool; set pool_tokens"


def no_cards(document: Document) -> str:
    """Return why there is no card."""
    asked = [row for row in rows(document.get("sources")) if row.get("source") == "nvml"]
    if not asked:
        return "reading NVML is switched off in the configuration"
    return next((because(row) for row in asked if row.get("reason")), "the driver lists none")
