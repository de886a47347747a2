"""Where the history file is when nobody says: for the daemon that writes, and for who reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE_NAME = "history.db"
SYSTEM_FOLDER = Path("/var/lib/kvwatch")


def writable_path(environment: Mapping[str, str], *, system: Path = SYSTEM_FOLDER) -> Path:
    """Return where a daemon with this environment keeps its history.

    The service manager's STATE_DIRECTORY, else /var/lib/kvwatch where that may be written, else the user's
    state folder. Whether it can be made shows when it is opened.
    """
    given = _state_directory(environment)
    if given is not None:
        return given / FILE_NAME
    if os.access(system if system.exists() else system.parent, os.W_OK | os.X_OK):
        return system / FILE_NAME
    own = _user_folder(environment)
    return (own or system) / FILE_NAME


def readable_path(environment: Mapping[str, str], *, system: Path = SYSTEM_FOLDER) -> Path | None:
    """Return the history that is there, for who asks; None where there is none in any usual place."""
    for folder in _folders(environment, system):
        try:
            if (folder / FILE_NAME).exists():
                return folder / FILE_NAME
        except OSError:  # a folder that may not be entered, such as systemd's private ones
            continue
    return None


def is_given(environment: Mapping[str, str]) -> bool:
    """Tell whether the service manager gave a folder to keep state in."""
    return _state_directory(environment) is not None


def _folders(environment: Mapping[str, str], system: Path) -> Iterator[Path]:
    given, own = _state_directory(environment), _user_folder(environment)
    yield from (folder for folder in (given, system, own) if folder is not None)


def _state_directory(environment: Mapping[str, str]) -> Path | None:
    """Return the first folder of STATE_DIRECTORY (systemd.exec(5): absolute paths, separated by colons)."""
    first = environment.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(first) if first.startswith("/") else None


def _user_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the user's folder by the XDG base directory specification, which ignores relative paths."""
    state, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if state.startswith("/"):
        return Path(state) / "kvwatch"
    return Path(home) / ".local/state/kvwatch" if home.startswith("/") else None
