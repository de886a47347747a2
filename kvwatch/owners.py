"""Which server a GPU process belongs to: by configuration, port, process tree, container or unit. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.kinship import (
    ancestry,
    differ,
    engine_line,
    own_server,
    programs,
    role,
    same,
    speakers,
    was_left_behind,
)
from kvwatch.readings import ProcessRole, Reason, short_id
from kvwatch.snapshot import Match

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kvwatch.readings import ProcessTable

_PART_OF_AN_ENGINE = (ProcessRole.ENGINE, ProcessRole.ACTOR)
_STARTS_ENGINES = (ProcessRole.SERVER, ProcessRole.LAUNCHER, ProcessRole.ENGINE)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process's server and the evidence; `ambiguous` when it cannot be told whether it is a server's."""

    server: str | None
    match: Match
    ambiguous: bool = False
    orphan_of: str | None = None
    """The server that is gone and left it behind, empty where it is not known which; None for all others."""
    anchor: tuple[int, int] | None = field(default=None, compare=False)
    """(PID, start time) of the process in its line that ties it to the server; None where none does."""
    reason: Reason | None = field(default=None, compare=False)
    detail: str = field(default="", compare=False)
    """Why it is ambiguous."""


NOBODY = Owner(None, Match.NONE)
UNTOLD = Owner(None, Match.NONE, ambiguous=True)


def untold(reason: Reason, detail: str) -> Owner:
    """Return an owner that is not known, and why."""
    return Owner(None, Match.NONE, ambiguous=True, reason=reason, detail=detail)


def find_owners(table: ProcessTable, pids: Iterable[int]) -> Mapping[int, Owner]:
    """Return the owner of each process.

    The process that listens rarely holds the memory: vLLM's engine core and workers are its descendants,
    and with several API servers they are its siblings under the launcher (vllm/v1/utils.py,
    entrypoints/cli/serve.py). Ray's actors are neither; they share its container or its service.
    """
    pids = tuple(pids)
    search = _Search(table, pids)
    return {pid: search.owner(pid) for pid in pids}


class _Search:
    """One search, over one table."""

    def __init__(self, table: ProcessTable, pids: Collection[int]) -> None:
        self._table = table
        self._pids = pids
        self._speakers = speakers(table)
        self._lines = {pid: tuple(ancestry(table, pid)) for pids in self._speakers.values() for pid in pids}

    def owner(self, pid: int) -> Owner:
        process = self._table.processes.get(pid)
        if process is None:
            return self._unseen(pid)
        homes = [server for server, home in self._table.homes.items() if home.holds(process)]
        found = self._by_line(pid, homes)
        if found is None and homes:
            if len(homes) > 1:
                return untold(Reason.AMBIGUOUS, f"{self._name(pid)}: {_listed(homes)} are configured for it")
            found = Owner(homes[0], Match.CONFIGURED)
        if found is None:
            found = self._by_launcher(pid)
        if found is None or (found.ambiguous and process.container is not None):
            found = self._by_group(pid) or found
        return found or self._without_evidence(pid)

    def _unseen(self, pid: int) -> Owner:
        """Say nothing of a process that was not seen; nobody's, where it has ended and nobody is watched."""
        table = self._table
        if table.reason is not None:
            return untold(table.reason, f"process {pid} was not looked at")
        if pid in table.hidden:
            detail = f"process {pid} is hidden (hidepid); run as root, or in the group that /proc allows"
            return untold(Reason.PERMISSION, detail)
        if not table.listeners and not table.homes:
            return NOBODY
        return untold(Reason.NOT_FOUND, f"process {pid} holds memory and is not in /proc: it has just ended")

    def _by_line(self, pid: int, homes: Collection[str]) -> Owner | None:
        """Find the nearest listener in the process's own line."""
        for distance, ancestor in enumerate(ancestry(self._table, pid)):
            claims = [server for server, pids in self._speakers.items() if ancestor in pids]
            if len(claims) > 1:
                return untold(Reason.AMBIGUOUS, f"{self._name(ancestor)} listens for {_listed(claims)}")
            if claims:
                match = Match.PORT if distance == 0 else Match.TREE
                if claims[0] in self._table.configured or claims[0] in homes:
                    match = Match.CONFIGURED
                return Owner(claims[0], match, anchor=self._table.processes[ancestor].key)
        return None

    def _by_launcher(self, pid: int) -> Owner | None:
        """Find the one server that an ancestor of `pid` launched.

        The launcher must be the engine's own, or run the same program as the listener and the process: two
        servers started by one shell or one supervisor are no siblings in this sense.
        """
        if was_left_behind(self._table, pid):
            return None
        below = [pid]
        for launcher in list(ancestry(self._table, pid))[1:]:
            claims = {
                (server, speaker)
                for server, pids in self._speakers.items()
                for speaker in pids
                if launcher in self._lines[speaker]
            }
            if claims:
                return self._of_launcher(launcher, below, claims)
            below.append(launcher)
        return None

    def _of_launcher(self, launcher: int, below: list[int], claims: set[tuple[str, int]]) -> Owner | None:
        pid, kind = below[0], role(self._table, launcher)
        servers = sorted({server for server, _ in claims})
        certain = kind in _STARTS_ENGINES
        if not certain:
            if any(role(self._table, at) is ProcessRole.SERVER for at in below):
                return None  # its own server stands between the two
            family = programs(self._table, pid, launcher, *(speaker for _, speaker in claims))
            if len(family - {None}) > 1:
                return None
            certain = kind is not ProcessRole.OTHER and None not in family
        if certain and len(servers) == 1:
            return Owner(servers[0], Match.TREE, anchor=self._table.processes[launcher].key)
        detail = f"{self._name(launcher)} started {self._name(pid)} and what listens for {_listed(servers)}"
        return untold(Reason.AMBIGUOUS, detail)

    def _by_group(self, pid: int) -> Owner | None:
        """Find the one server that listens in the process's container or service."""
        process = self._table.processes[pid]
        if process.group is None or was_left_behind(self._table, pid):
            return None
        inside = {
            server: [speaker for speaker in pids if self._group(speaker) == process.group]
            for server, pids in self._speakers.items()
        }
        servers = sorted(server for server, found in inside.items() if found)
        if not servers:
            return None
        where = self._place(pid)
        if len(servers) > 1:
            return untold(Reason.AMBIGUOUS, f"{self._name(pid)} is in {where} with {_listed(servers)}")
        (server,) = servers
        doubt = self._doubt(pid, inside[server], alone=process.unit is None)
        if doubt is None:
            return Owner(server, Match.CGROUP)
        return (
            untold(Reason.AMBIGUOUS, f"{self._name(pid)} is in {where} with {server}: {doubt}")
            if doubt
            else None
        )

    def _doubt(self, pid: int, listeners: Collection[int], *, alone: bool) -> str | None:
        """Say why a process that shares a listener's group may not be that server's.

        None where nothing speaks against it, empty where it certainly is somebody else's. A container is
        `alone` with one application as a rule; a service may be a supervisor of many.
        """
        table = self._table
        own = own_server(table, pid)
        if own is not None:
            if any(role(table, listener) is ProcessRole.SERVER for listener in listeners):
                return ""
            group = self._group(pid)
            owns = {own_server(table, other) for other in self._pids if self._group(other) == group}
            return None if owns <= {own, None} else "several servers run there"
        if role(table, pid) is ProcessRole.ENGINE:
            *_, root = engine_line(table, pid)
            parent = role(table, table.processes[root].parent_pid)
            known = parent in (ProcessRole.LAUNCHER, ProcessRole.ACTOR)
            return None if known else "its engine may have been left behind by an earlier server"
        if role(table, pid) is ProcessRole.ACTOR:
            return None
        if any(same(table, pid, listener) for listener in listeners):
            return None if alone else "nothing else ties the two together"
        certain = all(differ(table, pid, listener) for listener in listeners)
        answers = any(role(table, listener) is ProcessRole.SERVER for listener in listeners)
        return "" if certain and (answers or not alone) else "nothing else ties the two together"

    def _without_evidence(self, pid: int) -> Owner:
        """Return nobody, unless the process works for somebody who cannot be seen from it."""
        if role(self._table, pid) is not ProcessRole.ACTOR:
            return NOBODY
        heard = [speaker for pids in self._speakers.values() for speaker in pids]
        if all(differ(self._table, pid, speaker) for speaker in heard):
            return NOBODY
        return untold(Reason.AMBIGUOUS, f"{self._name(pid)} is a Ray actor, and nothing ties it to a server")

    def _group(self, pid: int) -> str | None:
        process = self._table.processes.get(pid)
        return None if process is None else process.group

    def _place(self, pid: int) -> str:
        process = self._table.processes[pid]
        return process.unit or f"container {short_id(process.container or '')}"

    def _name(self, pid: int) -> str:
        process = self._table.processes.get(pid)
        return f"process {pid}" if process is None else f"process {pid} ({process.name})"


def _listed(servers: Collection[str]) -> str:
    return ", ".join(sorted(servers))
