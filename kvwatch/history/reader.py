"""Reading the history file, while it is written or with the daemon down; never writes to it. Blocks."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kvwatch.history.codec import setup_from, window_from
from kvwatch.history.failures import UNREADABLE, SqliteError, failure_of
from kvwatch.history.hours import HOUR_SECONDS, steps_query
from kvwatch.history.rows import observation_of
from kvwatch.history.schema import APPLICATION_ID, MINUTE_COLUMNS, VERSION
from kvwatch.observation import distinct_starts
from kvwatch.readings import Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Any

    from kvwatch.history.hours import Table
    from kvwatch.observation import Observation, Setup, StartWindow

_BUSY_SECONDS = 5.0
_MINUTE_SECONDS = 60
_CANNOT_OPEN = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}

_COLUMNS = ", ".join(MINUTE_COLUMNS)
_MINUTES = f"SELECT {_COLUMNS} FROM minutes WHERE series = ? AND at >= ? AND at < ? ORDER BY at"  # noqa: S608
_STEPS: dict[Table, str] = {"minutes": steps_query("minutes"), "hours": steps_query("hours")}


class HistoryReader:
    """What a history file holds at the moment it is opened; raises SourceError.

    Reasons are not_found, permission, parse_error (it is no history), version_mismatch and others. A context
    manager; one thread at a time. Close it soon: while it is open, the writer's log grows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._connection = self._open()
        except BaseException:
            self._remove_copy()
            raise
        self._setups: dict[int, Setup] = {}
        self._devices: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._remove_copy()

    def servers(self) -> tuple[str, ...]:
        """Return the servers of which there are minutes, by name."""
        rows = self._ask("SELECT DISTINCT server FROM series ORDER BY server")
        return tuple(server for (server,) in rows)

    def span(self) -> tuple[float, float] | None:
        """Return the first minute's start and the last one's end, Unix seconds; None where there is none."""
        ((first, last),) = self._ask(
            "SELECT min((SELECT min(at) FROM minutes WHERE series = id)), "
            "max((SELECT at + seconds FROM minutes WHERE series = id ORDER BY at DESC LIMIT 1)) FROM series"
        )
        return None if first is None else (float(first), float(last))

    def observations(
        self, server: str, since: float, until: float, *, step: float | None = None
    ) -> tuple[Observation, ...]:
        """Return what began in [since, until), Unix seconds, of all ranks, oldest first.

        With `step` (seconds) minutes are joined to steps of that length. Each is of one setup and one start:
        where those change, a step has more than one observation, and each begins with its first minute.
        """
        result: list[Observation] = []
        query = "SELECT id, rank, summed_until FROM series WHERE server = ?"
        for number, rank, summed_until in self._ask(query, server):
            rows: list[tuple[Any, ...]] = []
            for table, first, last in _ranges(_whole(since), _whole(until), step, summed_until):
                if step is None or step <= _MINUTE_SECONDS:
                    rows += self._ask(_MINUTES, number, first, last)
                else:
                    rows += self._ask(_STEPS[table], number, first, last, int(step))
            with self._read_values():
                self._learn(rows)
                result += [
                    observation_of(row, server=server, rank=rank, setups=self._setups, devices=self._devices)
                    for row in rows
                ]
        result.sort(key=lambda observation: (observation.at, observation.rank))
        return tuple(result)

    def starts(self, server: str, since: float, until: float) -> tuple[float, ...]:
        """Return the server's start times (Unix seconds) that minutes begun in [since, until) tell of."""
        query = (
            "SELECT DISTINCT started_at FROM minutes JOIN series ON series = id "
            "WHERE server = ? AND at >= ? AND at < ? AND started_at IS NOT NULL ORDER BY started_at"
        )
        rows = self._ask(query, server, _whole(since), _whole(until))
        return tuple(distinct_starts(start for (start,) in rows))

    def start_windows(self, server: str, since: float, until: float) -> tuple[StartWindow, ...]:
        """Return the server's starts that were over in [since, until), oldest first."""
        query = (
            "SELECT body FROM starts WHERE server = ? AND ready_at >= ? AND ready_at < ? "
            "ORDER BY started_at, device"
        )
        rows = self._ask(query, server, since, until)
        with self._read_values():
            return tuple(window_from(body) for (body,) in rows)

    def setups(self, server: str, since: float, until: float) -> tuple[tuple[float, str, Setup], ...]:
        """Return when (Unix seconds) which rank came to have which setup, in [since, until)."""
        query = (
            "SELECT at, rank, setup FROM (SELECT at, rank, setup, lag(setup) OVER "
            "(PARTITION BY rank ORDER BY at) AS before FROM minutes JOIN series ON series = id "
            "WHERE server = ? AND at >= ? AND at < ?) WHERE before IS NOT setup ORDER BY at, rank"
        )
        rows = self._ask(query, server, _whole(since), _whole(until))
        with self._read_values():
            self._learn_setups({setup for _, _, setup in rows})
        return tuple((float(at), rank, self._setups[setup]) for at, rank, setup in rows)

    def _learn(self, rows: Sequence[tuple[Any, ...]]) -> None:
        place = MINUTE_COLUMNS.index("setup")
        self._learn_setups({row[place] for row in rows})
        self._devices.update(self._ask("SELECT id, uuid FROM devices"))

    def _learn_setups(self, numbers: set[int]) -> None:
        for number in numbers - self._setups.keys():
            ((body,),) = self._ask("SELECT body FROM setups WHERE id = ?", number)
            self._setups[number] = setup_from(body)

    @contextmanager
    def _read_values(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            detail = f"{self._path} is broken: {error!r}"
            raise SourceError(Reason.PARSE_ERROR, detail) from error

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise failure_of(error, f"read {self._path}") from error

    def _open(self) -> sqlite3.Connection:
        """Open the file as it is; where it may only be read, as one that nobody writes, or a copy of it."""
        try:
            self._path.stat()
        except FileNotFoundError:
            raise SourceError(Reason.NOT_FOUND, f"there is no history file {self._path}") from None
        except OSError as error:
            raise failure_of(error, f"read {self._path}") from error
        if not os.access(self._path, os.R_OK):
            raise SourceError(Reason.PERMISSION, f"cannot read {self._path}: Permission denied")
        problem: SqliteError | None = None
        try:
            for uri in self._ways():
                try:
                    return self._checked(uri)
                except (sqlite3.Error, UnicodeDecodeError) as error:
                    problem = error
                    if (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _CANNOT_OPEN:
                        break
        except OSError as error:
            raise failure_of(error, f"copy {self._path}") from error
        assert problem is not None  # noqa: S101 - there is a first way
        raise failure_of(problem, f"read {self._path}") from problem

    def _ways(self) -> Iterator[str]:
        """Yield the URIs to try, one after the other."""
        yield f"{self._path.absolute().as_uri()}?mode=ro"
        # A reader needs an index of the log of writes, which it may not make here. With no log it needs none.
        log = self._path.with_name(self._path.name + "-wal")
        if not log.exists() or log.stat().st_size == 0:
            yield f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
            return
        # Its writer was killed: what the log holds has to be put in place, so in a copy.
        self._folder = tempfile.TemporaryDirectory(prefix="kvwatch-history-")
        copy = Path(self._folder.name) / "history.db"
        shutil.copyfile(self._path, copy)
        shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
        yield copy.as_uri()

    def _checked(self, uri: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("BEGIN")  # all queries see the same moment
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            self._require_history(application, version)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_history(self, application: int, version: int) -> None:
        if application != APPLICATION_ID:
            raise SourceError(Reason.PARSE_ERROR, f"{self._path} is no history of kvwatch")
        if version > VERSION:
            detail = f"a newer kvwatch wrote {self._path}: version {version}, this one knows {VERSION}"
            raise SourceError(Reason.VERSION_MISMATCH, detail)

    def _remove_copy(self) -> None:
        if self._folder is not None:
            with suppress(OSError):
                self._folder.cleanup()


def _ranges(
    since: int, until: int, step: float | None, summed_until: int
) -> Iterator[tuple[Table, int, int]]:
    """Yield what to read from which table: hours where the step is of whole hours and they are summed."""
    if step is None or step % HOUR_SECONDS:
        yield "minutes", since, until
        return
    first = -(-since // HOUR_SECONDS) * HOUR_SECONDS
    last = max(first, min(until // HOUR_SECONDS * HOUR_SECONDS, summed_until))
    if first >= until:
        yield "minutes", since, until
        return
    yield "minutes", since, first
    yield "hours", first, last
    yield "minutes", last, until


def _whole(at: float) -> int:
    """Return the first whole second that is not before `at`: minutes begin at whole seconds."""
    return int(-(-at // 1))
