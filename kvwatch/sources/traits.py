"""What hardly changes in a process's life, read once for each: executable, role, container, unit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.sources.cgroups import NOWHERE, Placement, read_placement
from kvwatch.sources.commands import split_words
from kvwatch.sources.roles import role_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvwatch.readings import ProcessIdentity, ProcessRole

_MAX_COMMAND_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of a process beside its number, parent and name."""

    executable: str | None = None
    role: ProcessRole | None = None
    placement: Placement = NOWHERE


class TraitCache:
    """The traits of living processes, by (PID, start time, name).

    The name is part of the key because exec and a process title change it: what a container runtime starts
    is the runtime's own program in another cgroup until then.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[tuple[int, int, str], Traits] = {}

    def get(self, pid: int, start_ticks: int, name: str) -> Traits | None:
        """Return what is known of a process without reading anything."""
        return self._known.get((pid, start_ticks, name))

    def keep(self, pid: int, start_ticks: int, name: str, traits: Traits) -> None:
        """Remember what was read of a process."""
        self._known[pid, start_ticks, name] = traits

    def forget_except(self, processes: Iterable[ProcessIdentity]) -> None:
        """Drop what is known of all others."""
        kept = {(process.pid, process.start_ticks, process.name) for process in processes}
        self._known = {key: traits for key, traits in self._known.items() if key in kept}


def read_traits(root: Path, pid: int, name: str) -> Traits:
    """Read what can be read of a process; the rest is None."""
    return Traits(
        executable=_executable(root, pid),
        role=role_of(name, _command(root, pid)),
        placement=read_placement(root, pid),
    )


def _executable(root: Path, pid: int) -> str | None:
    """Read the link /proc/PID/exe; None for kernel threads, zombies and processes of other users."""
    try:
        target = os.readlink(f"{root}/{pid}/exe")  # noqa: PTH115
    except OSError:
        return None
    return os.fsencode(target).decode(errors="replace")


def _command(root: Path, pid: int) -> tuple[str, ...]:
    """Read a command line; empty where it is hidden, and of zombies and kernel threads."""
    try:
        with open(f"{root}/{pid}/cmdline", "rb", buffering=0) as file:  # noqa: PTH123
            return tuple(split_words(file.read(_MAX_COMMAND_BYTES) or b""))
    except OSError:
        return ()
