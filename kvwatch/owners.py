"""Which server a GPU process belongs to: by configured PID, by listening port, by process tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.snapshot import Match

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvwatch.readings import ProcessTable


@dataclass(frozen=True, slots=True)
class Owner:
    """A process's server and the evidence; `ambiguous` when it cannot be told whether it is a server's."""

    server: str | None
    match: Match
    ambiguous: bool = False


NOBODY = Owner(None, Match.NONE)
UNTOLD = Owner(None, Match.NONE, ambiguous=True)


def find_owners(table: ProcessTable, pids: Iterable[int]) -> Mapping[int, Owner]:
    """Return the owner of each process.

    The process that listens rarely holds the memory: vLLM's engine core and workers are its descendants,
    and with several API servers they are its siblings under the launcher (vllm/v1/utils.py,
    entrypoints/cli/serve.py).
    """
    return {pid: _owner(table, pid) for pid in pids}


def _owner(table: ProcessTable, pid: int) -> Owner:
    if pid not in table.processes:
        return UNTOLD if table.listeners else NOBODY
    for distance, ancestor in enumerate(_ancestry(table, pid)):
        claims = [server for server, listeners in table.listeners.items() if ancestor in listeners]
        if len(claims) > 1:
            return UNTOLD
        if claims:
            if claims[0] in table.configured:
                return Owner(claims[0], Match.CONFIGURED)
            return Owner(claims[0], Match.PORT if distance == 0 else Match.TREE)
    return _sibling_owner(table, pid)


def _sibling_owner(table: ProcessTable, pid: int) -> Owner:
    """Find the one server that an ancestor of `pid` launched.

    The launcher must run the same program as the listener and the process: two servers started by one
    shell or one supervisor are no siblings in this sense.
    """
    for launcher in list(_ancestry(table, pid))[1:]:
        claims = {
            (server, listener)
            for server, listeners in table.listeners.items()
            for listener in listeners
            if launcher in _ancestry(table, listener)
        }
        if claims:
            family = (pid, launcher, *(listener for _, listener in claims))
            programs = {table.processes[member].executable for member in family}
            if len(programs - {None}) > 1:
                return NOBODY
            servers = {server for server, _ in claims}
            certain = len(servers) == 1 and None not in programs
            return Owner(servers.pop(), Match.TREE) if certain else UNTOLD
    return NOBODY


def _ancestry(table: ProcessTable, pid: int) -> Iterator[int]:
    """Yield `pid` and its ancestors, nearest first; init is nobody's launcher."""
    seen: set[int] = set()
    while pid > 1 and pid in table.processes and pid not in seen:
        yield pid
        seen.add(pid)
        pid = table.processes[pid].parent_pid
