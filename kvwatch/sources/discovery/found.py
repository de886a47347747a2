"""What one look at this machine found, and the names that servers keep from look to look."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from kvwatch.readings import Outcome
    from kvwatch.target import Target

DISCOVERY = "discovery"
"""The target of its outcome; no server may have this name."""

_REFUSED = re.compile(r"[^A-Za-z0-9_.:-]")
_LONGEST_NAME = 50
"""So that a process number still fits behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one look found."""

    targets: tuple[Target, ...] = ()
    """Servers that nobody configured."""
    suspects: tuple[Target, ...] = ()
    """Ports of GPU processes to be asked once whether an engine answers there."""
    outcome: Outcome | None = None


class Names:
    """Gives each server a name of its own that it keeps as long as its address stays."""

    def __init__(self) -> None:
        self._given: dict[Hashable, tuple[str, str]] = {}

    def give(self, wanted: Mapping[Hashable, tuple[str, int]], taken: Collection[str]) -> dict[Hashable, str]:
        """Return a name for each key: what is wanted, or with the process's number where another has that.

        `wanted` holds a name and a process for each key, the oldest server first.
        """
        plain = {key: (_REFUSED.sub("-", name)[:_LONGEST_NAME], pid) for key, (name, pid) in wanted.items()}
        names = {
            key: given
            for key, (name, given) in self._given.items()
            if key in plain and plain[key][0] == name and given not in taken
        }
        used = {*taken, *names.values()}
        for key, (name, pid) in plain.items():
            if key not in names:
                names[key] = name if name not in used else f"{name}-{pid}"
                used.add(names[key])
        self._given = {key: (plain[key][0], given) for key, given in names.items()}
        return names
