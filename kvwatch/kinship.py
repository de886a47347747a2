"""Questions about a table of processes: who descends from whom, who really answers, who was left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.readings import ProcessRole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvwatch.readings import ProcessIdentity, ProcessTable

_INIT = 1
_DELETED = " (deleted)"
_SERVICE_MANAGERS = ("/systemd",)
_RUNS_ENGINES = (ProcessRole.SERVER, ProcessRole.LAUNCHER, ProcessRole.ACTOR)


def ancestry(table: ProcessTable, pid: int) -> Iterator[int]:
    """Yield `pid` and its ancestors, nearest first; init is nobody's launcher."""
    seen: set[int] = set()
    while pid > _INIT and pid in table.processes and pid not in seen:
        yield pid
        seen.add(pid)
        pid = table.processes[pid].parent_pid


def is_complete(table: ProcessTable, pid: int) -> bool:
    """Tell whether all ancestors of a process are known, so that one that is missing is none."""
    *_, last = ancestry(table, pid)
    return table.processes[last].parent_pid <= _INIT


def without_younger(table: ProcessTable, pids: Iterable[int], asked_ticks: int) -> ProcessTable:
    """Take out those of `pids` that started after the driver was asked for them.

    Each has the number of the process that the driver meant, which ended before /proc was read.
    """
    younger = {
        pid for pid in pids if pid in table.processes and table.processes[pid].start_ticks > asked_ticks
    }
    if not younger:
        return table
    processes = {pid: process for pid, process in table.processes.items() if pid not in younger}
    return replace(table, processes=processes)


def speakers(table: ProcessTable) -> dict[str, tuple[int, ...]]:
    """Return those of each server's listeners that can answer for it.

    A listening socket is inherited. An engine core that was forked holds it and never answers, also when
    nobody else is left; a service manager or a supervisor holds it for the one that it starts.
    """
    return {
        server: found
        for server, listeners in table.listeners.items()
        if (found := listeners if server in table.configured else _speaking(table, listeners))
    }


def _speaking(table: ProcessTable, listeners: tuple[int, ...]) -> tuple[int, ...]:
    servers = [pid for pid in listeners if role(table, pid) is ProcessRole.SERVER]
    above = {pid: list(ancestry(table, pid))[1:] for pid in servers}
    return tuple(
        pid
        for pid in listeners
        if role(table, pid) is not ProcessRole.ENGINE
        and not (program(table.processes.get(pid)) or "").endswith(_SERVICE_MANAGERS)
        and (
            pid in servers
            or not any(pid in above[server] and differ(table, pid, server) for server in servers)
        )
    )


def own_server(table: ProcessTable, pid: int) -> int | None:
    """Return the nearest process in a line, `pid` included, whose command line is a server's."""
    return next((at for at in ancestry(table, pid) if role(table, at) is ProcessRole.SERVER), None)


def was_left_behind(table: ProcessTable, pid: int) -> bool:
    """Tell whether an engine's process has certainly lost the server that started it.

    vLLM and SGLang start engine cores and workers from Python, so a parent that is init, a shell or a
    container's init has adopted them. A parent that runs the same program may be the real one.
    """
    if role(table, pid) is not ProcessRole.ENGINE:
        return False
    *_, root = engine_line(table, pid)
    parent_pid = table.processes[root].parent_pid
    parent = table.processes.get(parent_pid)
    if parent is not None and (parent.role in _RUNS_ENGINES or same(table, root, parent_pid)):
        return False
    return parent_pid == _INIT or (parent is not None and differ(table, root, parent_pid))


def engine_line(table: ProcessTable, pid: int) -> Iterator[int]:
    """Yield `pid` and the engine processes above it: a worker's engine core."""
    for at in ancestry(table, pid):
        if at != pid and role(table, at) is not ProcessRole.ENGINE:
            return
        yield at


def role(table: ProcessTable, pid: int) -> ProcessRole | None:
    """Return what a process is."""
    process = table.processes.get(pid)
    return None if process is None else process.role


def program(process: ProcessIdentity | None) -> str | None:
    """Return the file that a process runs, whether or not it has been replaced since."""
    return (
        None if process is None or process.executable is None else process.executable.removesuffix(_DELETED)
    )


def differ(table: ProcessTable, first: int, second: int) -> bool:
    """Tell whether two processes certainly run different programs."""
    return len(programs(table, first, second) - {None}) > 1


def same(table: ProcessTable, first: int, second: int) -> bool:
    """Tell whether two processes certainly run the same program."""
    both = programs(table, first, second)
    return len(both) == 1 and None not in both


def programs(table: ProcessTable, *pids: int) -> set[str | None]:
    """Return what several processes run; None among them where that may not be read."""
    return {program(table.processes.get(pid)) for pid in pids}
