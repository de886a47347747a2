"""The tables of the history file. A change that older versions cannot read raises VERSION."""

from __future__ import annotations

from kvwatch.history.columns import PART_COLUMNS, VALUE_COLUMNS

APPLICATION_ID = 0x6B767761
"""Tells our files from anybody else's; "kvwa" in ASCII."""
VERSION = 1

MINUTE_COLUMNS = ("series", "at", "seconds", "setup", *PART_COLUMNS, *VALUE_COLUMNS, "device_bytes")

_INTEGERS = {"sleeping", "usable_blocks", "usable_bytes"}
# A whole number takes as few bytes as it needs in either kind of column, and NULL none.
_VALUES = "\n".join(f"  {name} {'INTEGER' if name in _INTEGERS else 'REAL'}," for name in VALUE_COLUMNS)


def _rows(table: str) -> str:
    return f"""
CREATE TABLE {table} (
  series INTEGER NOT NULL,
  at INTEGER NOT NULL,
  seconds INTEGER NOT NULL,
  setup INTEGER NOT NULL,
  polls INTEGER NOT NULL,
  first_ms INTEGER NOT NULL,
  last_ms INTEGER NOT NULL,
{_VALUES}
  device_bytes TEXT,
  PRIMARY KEY (series, at)
) WITHOUT ROWID;
"""


TABLES = f"""
CREATE TABLE series (
  id INTEGER PRIMARY KEY,
  server TEXT NOT NULL,
  rank TEXT NOT NULL,
  summed_until INTEGER NOT NULL DEFAULT 0,
  UNIQUE (server, rank)
);
CREATE TABLE setups (
  id INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL,
  used_at INTEGER NOT NULL
);
CREATE TABLE devices (
  id INTEGER PRIMARY KEY,
  uuid TEXT NOT NULL UNIQUE
);
{_rows("minutes")}
{_rows("hours")}
CREATE TABLE starts (
  server TEXT NOT NULL,
  device TEXT NOT NULL,
  started_at REAL NOT NULL,
  ready_at REAL NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (server, device, started_at)
) WITHOUT ROWID;
"""
