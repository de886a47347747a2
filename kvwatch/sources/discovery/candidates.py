"""Processes whose command line starts a vLLM or a llama-server: found once, and again when something changed.

A look costs one listing of /proc and one small file for each server that is known. Command lines are read of
processes that are new or young, since a shell may become a server under the same number, and now and then of
all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.flags.programs import starts_another
from kvwatch.readings import Reason, SourceError
from kvwatch.sources.commands import split_words
from kvwatch.sources.launches import HINTS, engine_of, read_launch, stated_launch
from kvwatch.sources.processes import read_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from kvwatch.flags.launch import Launch

_REREAD_SECONDS = 60.0
_YOUNG_SECONDS = 15.0
_MAX_BYTES = 2 << 20  # ARG_MAX of Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A living process whose command line starts a server."""

    pid: int
    start_ticks: int
    ancestors: tuple[int, ...]
    """Nearest first, as they were when it was found."""
    engine: str
    launch: Launch
    readable: bool
    """Whether its environment could be read: otherwise only what the command line states is known."""
    is_launcher: bool
    """Whether its own program only starts the server, as `uv run vllm serve` does, and may stay."""


class CandidateScan:
    """All candidates of this machine, kept up to date; one look at a time.

    Args:
        root: of the processes.
        clock: monotonic seconds.

    """

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._root = root
        self._clock = clock
        self._known: frozenset[int] = frozenset()
        self._young: dict[int, float] = {}
        self._lines: dict[int, bytes] = {}
        self._read_all_at: float | None = None
        self.candidates: Mapping[int, Candidate] = {}
        self.hidden: frozenset[int] = frozenset()
        """Processes that are there and whose command lines may not be read."""
        self.reading: int | None = None
        """The process whose files are being read: the kernel can keep a reader waiting for ever."""

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self._known)

    @property
    def hides_others(self) -> bool:
        """Whether /proc keeps other users' processes out of sight (hidepid): even init is not there."""
        return 1 not in self._known

    def look(self, suspects: Collection[int] = ()) -> tuple[bool, bool]:
        """Look again; say whether the candidates changed, and whether all command lines were read anew.

        The command lines of `suspects` are read in any case. Raises OSError where /proc cannot be listed.
        """
        now = self._clock()
        present = frozenset(int(name) for name in os.listdir(self._root) if name.isdecimal())  # noqa: PTH208
        everything = self._read_all_at is None or now - self._read_all_at >= _REREAD_SECONDS
        if everything:
            self._read_all_at = now
        self._young = {
            pid: since
            for pid, since in self._young.items()
            if pid in present and now - since < _YOUNG_SECONDS
        }
        due = set(present) if everything else self._young.keys() | (present.intersection(suspects))
        new = present - self._known
        self._young |= dict.fromkeys(new, now)
        self._known = present
        before = self.candidates
        self.candidates = self._refreshed(due | new)
        return self.candidates != before, everything

    def _refreshed(self, due: Collection[int]) -> dict[int, Candidate]:
        kept = {
            pid: candidate
            for pid, candidate in self.candidates.items()
            if pid in self._known and _is_alive(self._root, candidate)
        }
        self._lines = {pid: line for pid, line in self._lines.items() if pid in kept}
        hidden = set(self.hidden & self._known) - set(due)
        replaced = self.candidates.keys() & self._known - kept.keys()
        for pid in {*due, *replaced}:
            self.reading = pid
            try:
                line = _read_line(self._root, pid)
            except PermissionError:
                hidden.add(pid)
                line = b""
            if pid in kept and line == self._lines[pid]:
                continue
            kept.pop(pid, None)
            candidate = _candidate(self._root, pid, line)
            if candidate is not None:
                kept[pid], self._lines[pid] = candidate, line
        self.reading = None
        self.hidden = frozenset(hidden)
        return kept


def _is_alive(root: Path, candidate: Candidate) -> bool:
    stat = read_stat(root, candidate.pid)
    return stat is not None and stat.start_ticks == candidate.start_ticks and not stat.exited


def _read_line(root: Path, pid: int) -> bytes:
    """Read a command line; empty where the process has gone. Raises PermissionError."""
    try:
        # Read of every process: a buffered Path costs double.
        with open(f"{root}/{pid}/cmdline", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read(_MAX_BYTES) or b""
    except PermissionError:
        raise
    except OSError:
        return b""


def _candidate(root: Path, pid: int, line: bytes) -> Candidate | None:
    """Make a candidate of a process; None where it starts no server or has gone meanwhile."""
    if not any(hint in line for hint in HINTS):
        return None
    argv = tuple(split_words(line))
    engine = engine_of(argv)
    stat = None if engine is None else read_stat(root, pid)
    if engine is None or stat is None or stat.exited:
        return None
    readable = True
    try:
        launch = read_launch(pid, engine, None, root=root)
    except SourceError as error:
        if error.reason is Reason.NOT_FOUND:
            return None
        launch, readable = stated_launch(argv, engine), False
    except ValueError:
        return None  # it has become another program between two reads
    if launch is None:
        return None
    return Candidate(
        pid=pid,
        start_ticks=stat.start_ticks,
        ancestors=_ancestors(root, stat.parent_pid),
        engine=engine,
        launch=launch,
        readable=readable,
        is_launcher=starts_another(argv),
    )


def _ancestors(root: Path, pid: int) -> tuple[int, ...]:
    found: list[int] = []
    while pid > 0 and pid not in found:
        found.append(pid)
        stat = read_stat(root, pid)
        pid = 0 if stat is None else stat.parent_pid
    return tuple(found)
