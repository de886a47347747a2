"""Minutes put together to longer steps, in SQL; whole hours are kept, so that a month is read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvwatch.history import columns
from kvwatch.history.schema import MINUTE_COLUMNS

if TYPE_CHECKING:
    import sqlite3

HOUR_SECONDS = 3600

Table = Literal["minutes", "hours"]


def steps_query(table: Table) -> str:
    """Return the query that puts rows together: MINUTE_COLUMNS of series ?1 in [?2, ?3) by steps of ?4.

    Each is of one setup and one start, and begins with its first row; where those change within a step, the
    step has more than one.
    """
    parts, values = [], []
    for name in MINUTE_COLUMNS:
        joining = columns.JOINING.get(name)
        if joining == "sum":
            parts.append(f"sum({name}) AS {name}")
        elif joining == "most":
            parts.append(f"max({name}) AS {name}")
        elif joining == "mean":
            weight = f"sum(CASE WHEN {name} IS NOT NULL THEN polls END)"
            parts.append(f"sum({name} * polls) / {weight} AS {name}")
        source = "part" if joining in ("sum", "most", "mean") else "latest"
        values.append(f"{source}.{name}")
    values[MINUTE_COLUMNS.index("at")] = "part.first_at"
    values[MINUTE_COLUMNS.index("seconds")] = "latest.at + latest.seconds - part.first_at"
    return (
        f"WITH part AS (SELECT min(at) AS first_at, max(at) AS last_at, {', '.join(parts)} FROM {table} "  # noqa: S608
        "WHERE series = ?1 AND at >= ?2 AND at < ?3 GROUP BY at / ?4, setup, started_at) "
        f"SELECT {', '.join(values)} FROM part JOIN {table} AS latest "
        "ON latest.series = ?1 AND latest.at = part.last_at ORDER BY part.first_at"
    )


_SUM = f"INSERT INTO hours ({', '.join(MINUTE_COLUMNS)}) {steps_query('minutes')}"


def keep_hours(connection: sqlite3.Connection, series: int, at: int) -> None:
    """Bring the hours of a series up to date after a minute `at` was written."""
    hour = at // HOUR_SECONDS * HOUR_SECONDS
    (summed_until,) = connection.execute("SELECT summed_until FROM series WHERE id = ?", (series,)).fetchone()
    if summed_until == hour:
        return
    # A minute of an hour that is summed already comes after the clock was turned back.
    since, until = (summed_until, hour) if summed_until < hour else (hour, hour + HOUR_SECONDS)
    connection.execute("DELETE FROM hours WHERE series = ? AND at >= ? AND at < ?", (series, since, until))
    connection.execute(_SUM, (series, since, until, HOUR_SECONDS))
    if summed_until < hour:
        connection.execute("UPDATE series SET summed_until = ? WHERE id = ?", (hour, series))
