"""Read a process's command line, working directory and the few variables that engines take settings from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.flags.command import Command, is_wanted
from kvwatch.readings import Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_MAX_BYTES = 2 << 20  # ARG_MAX of Linux: what one execve may pass, words and environment together


def read_command(pid: int, root: Path = _PROC) -> Command:
    """Read the command of a process; raises SourceError (permission, not_found, too_large).

    A process that gave itself a title has that title as its only word; one without words (a kernel thread, or
    a process that has exited) counts as not found. Where the environment or the working directory may not be
    read, that is permission too: half a command would look like one with defaults.
    """
    folder = root / str(pid)
    argv = tuple(split_words(_read(folder / "cmdline")))
    if not argv:
        raise SourceError(Reason.NOT_FOUND, f"process {pid} has no command line")
    variables = (word.partition("=") for word in split_words(_read(folder / "environ")))
    environ = {name: value for name, equals, value in variables if equals and is_wanted(name)}
    return Command(argv=argv, environ=environ, cwd=_working_directory(folder))


def split_words(data: bytes) -> Iterator[str]:
    """Split at NUL; a title is followed by the NULs of what it replaced."""
    text = data.decode("utf-8", errors="surrogateescape").rstrip("\0")
    if text:
        yield from text.split("\0")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _source_error(error, path) from None
    if len(data) > _MAX_BYTES:
        raise SourceError(Reason.TOO_LARGE, f"{path.name} has more than {_MAX_BYTES} bytes")
    return data


def _working_directory(folder: Path) -> str | None:
    """Return where relative paths start; None where that folder has been deleted."""
    try:
        target = str((folder / "cwd").readlink())
    except OSError as error:
        raise _source_error(error, folder / "cwd") from None
    return None if target.endswith(" (deleted)") else target


def _source_error(error: OSError, path: Path) -> SourceError:
    """Say why a file of a process cannot be read: it is another user's, or the process has gone."""
    if isinstance(error, PermissionError):
        return SourceError(Reason.PERMISSION, f"{path} may not be read; run as root or with CAP_SYS_PTRACE")
    return SourceError(Reason.NOT_FOUND, f"{path} does not exist")
