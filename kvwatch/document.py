"""A snapshot as plain JSON values, for `/api/v1/snapshot` and `kvwatch once --json`; null is unknown."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwatch import __version__

if TYPE_CHECKING:
    from kvwatch.observation import StartWindow
    from kvwatch.readings import Page
    from kvwatch.snapshot import Snapshot
    from kvwatch.visit import Visit

_SECRET_FIELDS = frozenset({"bearer_token_file", "ca_file"})


def snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """Return everything that the snapshot holds."""
    document = _plain(snapshot)
    document["version"] = __version__
    document["start_windows"] = [_start_window(window) for window in snapshot.start_windows]
    document["recompute_suspected"] = [
        {"server": server, "rank": rank, "requests": count}
        for (server, rank), count in sorted(snapshot.recompute_suspected.items())
    ]
    return dict(document)


def visit_document(visit: Visit) -> dict[str, Any]:
    """Return what was fetched from a server and how it was read; bodies stay out, they may hold prompts."""
    return {
        "engine": visit.adapter.name if visit.adapter else None,
        "outcome": _plain(visit.outcome),
        "pages": [_page(page) for page in visit.pages],
        "reading": _plain(visit.reading),
    }


def _start_window(window: StartWindow) -> dict[str, Any]:
    """Return a start window with what its neighbours grew by, each and all together."""
    neighbours = [
        {**_plain(neighbour), "grew_bytes": neighbour.grew_bytes} for neighbour in window.neighbours
    ]
    return {**_plain(window), "neighbours": neighbours, "grew_bytes": window.grew_bytes}


def _page(page: Page) -> dict[str, Any]:
    own = {name: value for name, value in _plain(page).items() if name != "body"}
    return {**own, "characters": None if page.body is None else len(page.body)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            if field.name not in _SECRET_FIELDS and field.name != "recompute_suspected"
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
