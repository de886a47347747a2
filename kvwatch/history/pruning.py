"""Keeping the history file within its time and its size: the oldest rows go first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.history.hours import HOUR_SECONDS

if TYPE_CHECKING:
    import sqlite3

_MOST_AT_ONCE_SECONDS = 86400
"""What one tidying takes away at most: a clock that is wrong for a moment must not cost the whole past."""
_STEPS = 64
"""In how many the whole past would go where the file is too large."""
_SLACK = 8
"""Of so many pages one may be empty before the file is made shorter."""


def prune_old(connection: sqlite3.Connection, *, now: float, retention_seconds: float) -> None:
    """Delete what is older than the retention, at most a day of it."""
    oldest = oldest_at(connection)
    horizon = int(now - retention_seconds)
    if oldest is not None and oldest < horizon:
        _delete_before(connection, min(horizon, oldest + _MOST_AT_ONCE_SECONDS))
    _shorten(connection, to_pages=None)


def prune_large(connection: sqlite3.Connection, *, max_bytes: int) -> bool:
    """Delete the oldest rows until the file is no larger than `max_bytes`; tell whether any went."""
    pruned = False
    page_bytes = _pragma(connection, "page_size")
    pages = max_bytes // page_bytes
    if _pragma(connection, "page_count") <= pages:
        return False
    while _pragma(connection, "page_count") - _pragma(connection, "freelist_count") > pages:
        oldest, newest = oldest_at(connection), _newest_at(connection)
        if oldest is None or newest is None or newest - oldest < HOUR_SECONDS:
            break  # there is nothing left that could go
        # A cap that was lowered much must not take long, but one row of a clock that was years ahead must not
        # make the steps long either.
        step = min(_MOST_AT_ONCE_SECONDS, max(HOUR_SECONDS, (newest - oldest) // _STEPS))
        _delete_before(connection, oldest + step)
        pruned = True
    _shorten(connection, to_pages=pages)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # all this went through the log
    return pruned


def oldest_at(connection: sqlite3.Connection) -> int | None:
    """Return the start of the oldest row, Unix seconds; None where there is none."""
    # One look into the index for each series; min() over the whole table would read all of it.
    query = "SELECT min((SELECT min(at) FROM minutes WHERE series = id)) FROM series"
    value: int | None = connection.execute(query).fetchone()[0]
    return value


def _newest_at(connection: sqlite3.Connection) -> int | None:
    query = "SELECT max((SELECT max(at) FROM minutes WHERE series = id)) FROM series"
    value: int | None = connection.execute(query).fetchone()[0]
    return value


def _delete_before(connection: sqlite3.Connection, at: int) -> None:
    """Delete the whole hours before a moment."""
    horizon = at // HOUR_SECONDS * HOUR_SECONDS
    connection.execute("BEGIN IMMEDIATE")
    try:
        for (series,) in connection.execute("SELECT id FROM series").fetchall():
            connection.execute("DELETE FROM minutes WHERE series = ? AND at < ?", (series, horizon))
            connection.execute("DELETE FROM hours WHERE series = ? AND at < ?", (series, horizon))
        connection.execute(
            "DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM minutes WHERE series = series.id)"
        )
        connection.execute("DELETE FROM setups WHERE used_at < ?", (horizon - HOUR_SECONDS,))
        # A server's last start stays for as long as it has rows: it may be the one before the baseline.
        connection.execute(
            "DELETE FROM starts WHERE ready_at < ? AND ("
            "  EXISTS (SELECT 1 FROM starts AS later WHERE later.server = starts.server"
            "    AND later.device = starts.device AND later.started_at > starts.started_at)"
            "  OR NOT EXISTS (SELECT 1 FROM series WHERE series.server = starts.server))",
            (horizon,),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _shorten(connection: sqlite3.Connection, *, to_pages: int | None) -> None:
    """Give empty pages back to the file system: those above the cap, and more than an eighth of all."""
    total, free = _pragma(connection, "page_count"), _pragma(connection, "freelist_count")
    surplus = max(0 if to_pages is None else total - to_pages, free - total // _SLACK)
    if min(surplus, free) > 0:
        connection.execute(f"PRAGMA incremental_vacuum({min(surplus, free)})").fetchall()


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
