"""Where the history is when nobody says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.history.location import is_given, readable_path, writable_path

if TYPE_CHECKING:
    from pathlib import Path


def test_the_service_managers_folder_comes_first(tmp_path: Path) -> None:
    """The first of several; a relative one is nonsense and passed over."""
    environment = {"STATE_DIRECTORY": f"{tmp_path}/a:{tmp_path}/b", "HOME": "/home/me"}
    assert writable_path(environment, system=tmp_path) == tmp_path / "a" / "history.db"
    assert is_given(environment)
    assert not is_given({"STATE_DIRECTORY": "relative"})
    assert writable_path({"STATE_DIRECTORY": "relative"}, system=tmp_path) == tmp_path / "history.db"


def test_the_system_folder_where_it_may_be_written_else_the_users(tmp_path: Path) -> None:
    """XDG_STATE_HOME, else below HOME; with neither the system's, whose failure then says why."""
    nowhere = tmp_path / "no" / "such" / "folder"
    assert writable_path({"HOME": "/home/me"}, system=tmp_path / "kvwatch") == tmp_path / "kvwatch/history.db"
    home = writable_path({"HOME": "/home/me"}, system=nowhere)
    assert str(home) == "/home/me/.local/state/kvwatch/history.db"
    own = writable_path({"HOME": "/home/me", "XDG_STATE_HOME": "/state"}, system=nowhere)
    assert str(own) == "/state/kvwatch/history.db"
    assert writable_path({"XDG_STATE_HOME": "relative"}, system=nowhere) == nowhere / "history.db"


def test_who_reads_finds_what_is_there(tmp_path: Path) -> None:
    """The system's before the user's; None where there is none."""
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    system = tmp_path / "system"
    assert readable_path(environment, system=system) is None
    own = tmp_path / "state" / "kvwatch" / "history.db"
    own.parent.mkdir(parents=True)
    own.touch()
    assert readable_path(environment, system=system) == own
    system.mkdir()
    (system / "history.db").touch()
    assert readable_path(environment, system=system) == system / "history.db"
