"""What reading the files of a run has come to so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Problem

if TYPE_CHECKING:
    from kvwatch.check.reading.given_files import Shelf
    from kvwatch.check.reading.starts import Start

MAX_SERVERS = 500
"""Of one run: no machine starts so many."""


@dataclass(slots=True)
class Notebook:
    """What reading came to so far: problems, and the files that may be named."""

    shelf: Shelf
    problems: dict[Problem, None] = field(default_factory=dict)
    servers: int = 0

    def note(self, problem: Problem) -> None:
        """Keep a problem, each once."""
        self.problems[problem] = None

    def count(self, start: Start) -> bool:
        """Count a server; say whether it is not one too many."""
        self.servers += 1
        if self.servers == MAX_SERVERS + 1:
            message = f"more than {MAX_SERVERS} servers: those from here on are left out"
            self.note(Problem(place=start.place, message=message))
        return self.servers <= MAX_SERVERS
