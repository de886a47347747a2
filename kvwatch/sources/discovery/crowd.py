"""A bound on what one user can make kvwatch watch: anybody can start processes with a server's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.sources.processes import read_user

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.sources.discovery.services import Service

MOST_OF_ONE_USER = 128
"""Far more servers than any machine runs."""


def bounded(root: Path, services: tuple[Service, ...]) -> tuple[tuple[Service, ...], str]:
    """Return the oldest services of each user, in their order, and what is to be said of the others."""
    if len(services) <= MOST_OF_ONE_USER:
        return services, ""
    kept: set[tuple[int, int, int]] = set()
    counts: dict[int | None, int] = {}
    for service in sorted(services, key=lambda one: (one.main.start_ticks, one.key)):
        user = read_user(root, service.main.pid)
        counts[user] = counts.get(user, 0) + 1
        if counts[user] <= MOST_OF_ONE_USER:
            kept.add(service.key)
    user, count = max(counts.items(), key=lambda one: one[1])
    if count <= MOST_OF_ONE_USER:
        return services, ""
    detail = f"{count} servers of user {user}: only the {MOST_OF_ONE_USER} oldest are watched"
    return tuple(service for service in services if service.key in kept), detail
