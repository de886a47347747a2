"""Opening the history file for writing: its folder, its lock, its health; a bad one is set aside."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import stat
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvwatch.history.failures import failure_of, is_damage, message_of
from kvwatch.history.schema import APPLICATION_ID, TABLES, VERSION
from kvwatch.readings import Reason, SourceError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

BUSY_SECONDS = 5.0
WAL_PAGES = 256
"""The log of writes is folded into the file when it is so long: 1 MiB."""
PAGE_BYTES = 4096
_FOLDER_MODE, _FILE_MODE = 0o750, 0o640
_INCREMENTAL = 2


class _UnusableError(Exception):
    """The file is none of ours, or broken: what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFile:
    """The open file, locked against a second writer."""

    path: Path
    connection: sqlite3.Connection
    lock: int
    identity: tuple[int, int]
    """Device and inode."""

    def is_in_place(self) -> bool:
        """Tell whether the path still names this file; False where somebody moved or deleted it."""
        try:
            return identity_of(self.path) == self.identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it; never raises."""
        with suppress(sqlite3.Error):
            self.connection.close()
        os.close(self.lock)


def identity_of(path: Path) -> tuple[int, int]:
    """Return what a file stays the same by; raises OSError."""
    status = path.stat()
    return status.st_dev, status.st_ino


def open_history(path: Path, *, check: bool = True) -> HistoryFile:
    """Open or make the file; `check` reads all of it. Raises SourceError.

    One that is broken, or is no history, is renamed to NAME.corrupt-DATE with what belongs to it, and a fresh
    one is begun. One that a newer kvwatch wrote is left as it is. Blocks.
    """
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        lock = _locked(path)
    except OSError as error:
        raise failure_of(error, f"make {path}") from error
    try:
        connection = _opened(path, check=check)
        return HistoryFile(path=path, connection=connection, lock=lock, identity=identity_of(path))
    except OSError as error:
        os.close(lock)
        raise failure_of(error, f"open {path}") from error
    except BaseException:
        os.close(lock)
        raise


def _locked(path: Path) -> int:
    """Take the lock; it is a file of its own, since SQLite's locks end when anybody closes the database."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SourceError(
            Reason.AMBIGUOUS, f"another kvwatch writes {path}; give one of them a file of its own"
        ) from None
    except OSError:
        os.close(lock)
        raise
    return lock


def _opened(path: Path, *, check: bool) -> sqlite3.Connection:
    _make_file(path)
    try:
        return _connected(path, check=check)
    except _UnusableError as problem:
        aside = _set_aside(path)
        log.warning("history: %s %s; it is kept as %s, and a new one is begun", path, problem, aside.name)
    _make_file(path)
    try:
        return _connected(path, check=check)
    except _UnusableError as problem:
        raise SourceError(Reason.DISK, f"a new file {path} {problem}") from problem


def _make_file(path: Path) -> None:
    """Make an empty file of the right mode; SQLite would make one that everybody may read."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE))
    if not stat.S_ISREG(path.stat().st_mode):
        raise SourceError(Reason.NOT_SUPPORTED, f"{path} is no regular file")


def _connected(path: Path, *, check: bool) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise failure_of(error, f"open {path}") from error
    try:
        _prepare(connection, check=check)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        connection.close()
        if is_damage(error):
            raise _UnusableError(f"is broken or no database ({message_of(error)})") from error
        raise failure_of(error, f"open {path}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, *, check: bool) -> None:
    """Check the file and set the connection up; make the tables where there are none."""
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    is_new = application == 0 and tables == 0
    if not is_new and application != APPLICATION_ID:
        raise _UnusableError("is a database of another program")
    if version > VERSION:
        raise SourceError(
            Reason.VERSION_MISMATCH,
            f"the history file is of version {version}, written by a newer kvwatch; this one knows {VERSION}",
        )
    if check and not is_new:
        problems = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise _UnusableError(f"is broken ({' '.join(problems[0].split())})")
        if not _tables(connection) >= _our_tables():
            raise _UnusableError("is broken (its tables are not those of a history)")
    if is_new:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if _pragma(connection, "auto_vacuum") != _INCREMENTAL:
            connection.execute("VACUUM")  # an empty file that somebody else prepared
    connection.execute("PRAGMA journal_mode = WAL")
    # With NORMAL a commit would survive the process, not the power; one a minute may cost an fsync.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_PAGES * PAGE_BYTES}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    if is_new:
        connection.executescript(
            f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {VERSION}; COMMIT;"
        )


def _tables(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    return set(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))


def _our_tables() -> set[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        return _tables(connection)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _set_aside(path: Path) -> Path:
    """Rename the file and what belongs to it; return the new name. Raises SourceError."""
    if path.is_symlink():
        raise SourceError(
            Reason.NOT_SUPPORTED, f"{path} is a link to a file that is no history; it is left alone"
        )
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    # The file itself comes last: killed between two of these, the next start goes on with the rest.
    for suffix in ("-journal", "-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside
