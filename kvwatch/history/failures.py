"""Why the history file cannot be used: what SQLite and the system say, as reasons. Pure."""

from __future__ import annotations

import errno
import sqlite3

from kvwatch.readings import Reason, SourceError

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What reading a value raises that SQLite took for whole and that is not what was written."""
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_PRIMARY = 0xFF
"""The low byte of an extended result code is the primary one (sqlite.org/rescode.html)."""
_REASONS = {
    sqlite3.SQLITE_FULL: Reason.DISK,
    sqlite3.SQLITE_IOERR: Reason.DISK,
    sqlite3.SQLITE_CANTOPEN: Reason.DISK,
    sqlite3.SQLITE_READONLY: Reason.PERMISSION,
    sqlite3.SQLITE_PERM: Reason.PERMISSION,
    sqlite3.SQLITE_AUTH: Reason.PERMISSION,
    sqlite3.SQLITE_BUSY: Reason.TIMEOUT,
    sqlite3.SQLITE_LOCKED: Reason.TIMEOUT,
    sqlite3.SQLITE_ERROR: Reason.PARSE_ERROR,  # a table or a column is not there
    sqlite3.SQLITE_CORRUPT: Reason.PARSE_ERROR,
    sqlite3.SQLITE_NOTADB: Reason.PARSE_ERROR,
}


SqliteError = sqlite3.Error | UnicodeDecodeError
"""What the sqlite3 module raises; the second where a broken file makes SQLite's own message no text."""
_MESSAGE_CHARACTERS = 200


def failure_of(error: OSError | SqliteError, doing: str) -> SourceError:
    """Return what an error means, said as in "cannot write /var/lib/...: database or disk is full"."""
    if isinstance(error, OSError):
        reason = Reason.PERMISSION if error.errno in _NOT_ALLOWED else Reason.DISK
        return SourceError(reason, f"cannot {doing}: {error.strerror or error}")
    reason = _REASONS.get(_code(error), Reason.INTERNAL_ERROR)
    if isinstance(error, sqlite3.OperationalError | UnicodeDecodeError) and not _code(error):
        reason = Reason.PARSE_ERROR  # text that is no UTF-8
    return SourceError(reason, f"cannot {doing}: {message_of(error)}")


def message_of(error: SqliteError) -> str:
    """Return SQLite's message in one line; of a broken file it may hold a table's whole definition."""
    return " ".join(str(error).split())[:_MESSAGE_CHARACTERS]


def is_damage(error: SqliteError) -> bool:
    """Tell whether an error says that the file is broken or no database at all."""
    return isinstance(error, UnicodeDecodeError) or _code(error) in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def is_passing(error: SqliteError) -> bool:
    """Tell whether the open file may be used again as it is: there was no room, or no turn."""
    return _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: SqliteError) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)  # absent where Python itself complains
    return code & _PRIMARY
