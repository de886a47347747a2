"""Writing the history file: minutes and start windows in, one transaction at a time. Blocks."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kvwatch.history import pruning
from kvwatch.history.codec import setup_digest, setup_from, setup_text, window_text
from kvwatch.history.failures import UNREADABLE, failure_of, is_damage, is_passing
from kvwatch.history.file import PAGE_BYTES, WAL_PAGES, identity_of, open_history
from kvwatch.history.hours import HOUR_SECONDS, keep_hours
from kvwatch.history.minute import are_apart, joined
from kvwatch.history.rows import minute_of, observation_of, row_of
from kvwatch.history.schema import MINUTE_COLUMNS
from kvwatch.snapshot import HistoryState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

    from kvwatch.history.file import HistoryFile
    from kvwatch.history.minute import Minute
    from kvwatch.observation import Setup, StartWindow

_FIRST_TIDYING_SECONDS = 600.0
"""After opening: by then a clock that was wrong at boot has been set."""
_WAL_BYTES = 2 * WAL_PAGES * PAGE_BYTES
"""Kept free of `max_bytes` for the log of writes, which grows past its length while somebody reads."""
_SETUPS_REMEMBERED = 1000

_COLUMNS = ", ".join(MINUTE_COLUMNS)
_INSERT = f"INSERT INTO minutes ({_COLUMNS}) VALUES ({', '.join('?' * len(MINUTE_COLUMNS))})"  # noqa: S608
_SELECT = f"SELECT {_COLUMNS} FROM minutes WHERE series = ? AND at = ?"  # noqa: S608 - names of our own


class Store:
    """The one writer of a history file; one thread at a time. Raises SourceError.

    Args:
        path: of the file; it and its folder are made where they are missing.
        retention_seconds: older rows go.
        max_bytes: the oldest rows go where the file would be larger.
        clock: monotonic seconds.
        wall_clock: Unix seconds.

    """

    def __init__(
        self,
        path: Path,
        *,
        retention_seconds: float,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._retention_seconds = retention_seconds
        self._max_bytes = max_bytes
        self._clock = clock
        self._wall_clock = wall_clock
        self._file: HistoryFile | None = None
        self._checked: tuple[int, int] | None = None
        """The file that was looked at as a whole, so that a failure does not mean to read all of it again."""
        self._tidy_at = 0.0
        self._series: dict[tuple[str, str], int] = {}
        self._devices: dict[str, int] = {}
        self._setups: dict[str, tuple[int, int]] = {}

    def write(self, minutes: Sequence[Minute], windows: Sequence[StartWindow] = ()) -> HistoryState:
        """Write all of it or nothing, and tidy up; nothing to write opens the file.

        The same minutes may be given again after a failure: what is there already is not counted twice.
        """
        try:
            file = self._ready()
            if minutes or windows:
                self._transact(file.connection, minutes, windows)
            self._tidy(file)
            return self._state(file)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._forget()
            if is_damage(error):
                self._checked = None  # the next opening looks at all of it, and sets it aside
            if not is_passing(error):
                self.close()
            raise failure_of(error, f"write {self.path}") from error
        except OSError as error:
            raise failure_of(error, f"write {self.path}") from error

    def close(self) -> None:
        """Close the file; never raises."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._forget()

    def _ready(self) -> HistoryFile:
        if self._file is not None and not self._file.is_in_place():
            self.close()
        if self._file is None:
            identity = None
            with suppress(OSError):
                identity = identity_of(self.path)
            self._file = open_history(self.path, check=identity != self._checked)
            self._checked = self._file.identity
            self._tidy_at = self._clock() + _FIRST_TIDYING_SECONDS
        return self._file

    def _transact(
        self, connection: sqlite3.Connection, minutes: Sequence[Minute], windows: Sequence[StartWindow]
    ) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for minute in minutes:
                self._write_minute(connection, minute)
            for window in windows:
                connection.execute(
                    "INSERT OR REPLACE INTO starts VALUES (?, ?, ?, ?, ?)",
                    (window.server, window.device, window.started_at, window.ready_at, window_text(window)),
                )
            connection.execute("COMMIT")
        except BaseException:
            self._forget()
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _write_minute(self, connection: sqlite3.Connection, minute: Minute) -> None:
        key = (self._series_id(connection, minute), int(minute.observation.at))
        found = connection.execute(_SELECT, key).fetchone()
        if found is not None:
            with suppress(*UNREADABLE):  # a row that is broken gives way
                kept = self._kept(connection, found, minute)
                if not are_apart(kept, minute):
                    return
                minute = joined(kept, minute)
            connection.execute("DELETE FROM minutes WHERE series = ? AND at = ?", key)
        observation = minute.observation
        row = row_of(
            minute,
            series=key[0],
            setup=self._setup_id(connection, observation.setup, key[1]),
            devices={uuid: self._device_id(connection, uuid) for uuid in observation.device_bytes},
        )
        connection.execute(_INSERT, row)
        keep_hours(connection, *key)

    def _kept(self, connection: sqlite3.Connection, row: tuple[Any, ...], minute: Minute) -> Minute:
        """Return what the file has of the same minute."""
        setup = row[MINUTE_COLUMNS.index("setup")]
        (body,) = connection.execute("SELECT body FROM setups WHERE id = ?", (setup,)).fetchone()
        devices = dict(connection.execute("SELECT id, uuid FROM devices").fetchall())
        own = minute.observation
        kept = observation_of(
            row, server=own.server, rank=own.rank, setups={setup: setup_from(body)}, devices=devices
        )
        return minute_of(row, kept)

    def _series_id(self, connection: sqlite3.Connection, minute: Minute) -> int:
        key = (minute.observation.server, minute.observation.rank)
        if key not in self._series:
            connection.execute("INSERT OR IGNORE INTO series (server, rank) VALUES (?, ?)", key)
            query = "SELECT id FROM series WHERE server = ? AND rank = ?"
            (self._series[key],) = connection.execute(query, key).fetchone()
        return self._series[key]

    def _device_id(self, connection: sqlite3.Connection, uuid: str) -> int:
        if uuid not in self._devices:
            connection.execute("INSERT OR IGNORE INTO devices (uuid) VALUES (?)", (uuid,))
            query = "SELECT id FROM devices WHERE uuid = ?"
            (self._devices[uuid],) = connection.execute(query, (uuid,)).fetchone()
        return self._devices[uuid]

    def _setup_id(self, connection: sqlite3.Connection, setup: Setup, at: int) -> int:
        """Return the number of a setup; when it was last used is noted once an hour, for pruning."""
        text = setup_text(setup)
        number, noted = self._setups.get(text, (None, 0))
        if number is None or at >= noted + HOUR_SECONDS:
            connection.execute(
                "INSERT INTO setups (digest, body, used_at) VALUES (?, ?, ?) "
                "ON CONFLICT (digest) DO UPDATE SET used_at = max(used_at, excluded.used_at)",
                (setup_digest(text), text, at),
            )
            query = "SELECT id FROM setups WHERE digest = ?"
            (number,) = connection.execute(query, (setup_digest(text),)).fetchone()
            if len(self._setups) >= _SETUPS_REMEMBERED:
                self._setups.clear()
            self._setups[text] = (number, at)
        return int(number)

    def _tidy(self, file: HistoryFile) -> None:
        if self._clock() >= self._tidy_at:
            self._tidy_at = self._clock() + HOUR_SECONDS
            pruning.prune_old(
                file.connection, now=self._wall_clock(), retention_seconds=self._retention_seconds
            )
            self._forget()
        if pruning.prune_large(file.connection, max_bytes=self._max_bytes - _WAL_BYTES):
            self._forget()

    def _state(self, file: HistoryFile) -> HistoryState:
        size = self.path.stat().st_size
        with suppress(FileNotFoundError):
            size += self.path.with_name(self.path.name + "-wal").stat().st_size
        oldest = pruning.oldest_at(file.connection)
        return HistoryState(size_bytes=size, oldest_at=None if oldest is None else float(oldest))

    def _forget(self) -> None:
        """Forget the numbers of what may not be in the file: rolled back, or pruned."""
        self._series.clear()
        self._devices.clear()
        self._setups.clear()
