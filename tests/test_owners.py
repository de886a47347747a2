"""Which server a GPU process belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.owners import NOBODY, UNTOLD, Owner, find_owners
from kvwatch.readings import ProcessIdentity, ProcessTable
from kvwatch.snapshot import Match

PYTHON, BASH, LLAMA = "/usr/bin/python3.12", "/usr/bin/bash", "/opt/llama-server"


def table(
    parents: dict[int, int],
    listeners: dict[str, tuple[int, ...]],
    *,
    programs: dict[int, str | None] | None = None,
    configured: tuple[str, ...] = (),
) -> ProcessTable:
    """Return a table of PID -> parent; every process runs Python unless told otherwise."""
    return ProcessTable(
        processes={
            pid: ProcessIdentity(
                pid=pid,
                start_ticks=pid,
                parent_pid=parent,
                name="p",
                executable=(programs or {}).get(pid, PYTHON),
            )
            for pid, parent in parents.items()
        },
        listeners=listeners,
        configured=frozenset(configured),
    )


@dataclass(frozen=True)
class Case:
    """A process table, the PID that holds a device, and whose it is."""

    table: ProcessTable
    pid: int
    owner: Owner


CHAT_TREE, CHAT_PORT = Owner("chat", Match.TREE), Owner("chat", Match.PORT)
CASES = {
    "the listener itself": Case(table({10: 1}, {"chat": (10,)}), 10, CHAT_PORT),
    "the engine core under the listener": Case(table({10: 1, 11: 10}, {"chat": (10,)}), 11, CHAT_TREE),
    "a worker under the engine core": Case(table({10: 1, 11: 10, 12: 11}, {"chat": (10,)}), 12, CHAT_TREE),
    "several API servers beside the engine core": Case(
        table({9: 1, 10: 9, 11: 9, 12: 9}, {"chat": (10, 11)}), 12, CHAT_TREE),
    "a configured process": Case(
        table({10: 1}, {"chat": (10,)}, configured=("chat",)), 10, Owner("chat", Match.CONFIGURED)),
    "a child of a configured process": Case(
        table({10: 1, 11: 10}, {"chat": (10,)}, configured=("chat",)), 11, Owner("chat", Match.CONFIGURED)),
    "another program entirely": Case(table({10: 1, 20: 1}, {"chat": (10,)}), 20, NOBODY),
    "no server is watched": Case(table({20: 1}, {}), 20, NOBODY),
    "two servers, each with its own child": Case(
        table({10: 1, 11: 10, 20: 1, 21: 20}, {"chat": (10,), "embed": (20,)}), 21,
        Owner("embed", Match.TREE)),
    "a server started by another server": Case(
        table({10: 1, 20: 10, 21: 20}, {"chat": (10,), "embed": (20,)}), 21, Owner("embed", Match.TREE)),
    "two servers in one process": Case(table({10: 1}, {"chat": (10,), "alias": (10,)}), 10, UNTOLD),
    "a child of two servers in one process": Case(
        table({10: 1, 11: 10}, {"chat": (10,), "alias": (10,)}), 11, UNTOLD),
    "a job of the same shell": Case(
        table({9: 1, 10: 9, 12: 9}, {"chat": (10,)}, programs={9: BASH}), 12, NOBODY),
    "a job of a shell that started two servers": Case(
        table({9: 1, 10: 9, 11: 9, 12: 9}, {"chat": (10,), "embed": (11,)}, programs={9: BASH}), 12, NOBODY),
    "another program of a supervisor that is written in the server's language": Case(
        table({9: 1, 10: 9, 12: 9}, {"chat": (10,)}, programs={12: "/opt/train"}), 12, NOBODY),
    "two servers of one launcher, and an engine core beside them": Case(
        table({9: 1, 10: 9, 11: 9, 12: 9}, {"chat": (10,), "embed": (11,)}), 12, UNTOLD),
    "a llama-server of the same supervisor": Case(
        table({9: 1, 10: 9, 12: 9}, {"chat": (10,)}, programs={12: LLAMA}), 12, NOBODY),
    "the launcher's program may not be read": Case(
        table({9: 1, 10: 9, 12: 9}, {"chat": (10,)}, programs={9: None}), 12, UNTOLD),
    "the launcher's program may not be read, and the others differ": Case(
        table({9: 1, 10: 9, 12: 9}, {"chat": (10,)}, programs={9: None, 12: LLAMA}), 12, NOBODY),
    "it ended before it could be looked at": Case(table({10: 1}, {"chat": (10,)}), 77, UNTOLD),
    "a cycle of parents": Case(table({20: 21, 21: 20, 10: 1}, {"chat": (10,)}), 20, NOBODY),
    "siblings only through init": Case(table({1: 0, 10: 1, 20: 1}, {"chat": (10,)}), 20, NOBODY),
}  # fmt: skip


@pytest.mark.parametrize("situation", CASES)
def test_whose_process_it_is(situation: str) -> None:
    """The evidence decides; where it points two ways or nowhere, nobody is charged."""
    case = CASES[situation]
    assert find_owners(case.table, [case.pid]) == {case.pid: case.owner}


@st.composite
def tables(draw: st.DrawFn) -> ProcessTable:
    """Return any process tree with any listeners, one process listening for several servers included."""
    pids = range(2, draw(st.integers(3, 14)))
    return table(
        {pid: draw(st.integers(0, pid - 1)) for pid in pids},
        {
            server: tuple(draw(st.lists(st.sampled_from(pids), min_size=1, max_size=3, unique=True)))
            for server in ("a", "b", "c")[: draw(st.integers(0, 3))]
        },
        programs={pid: draw(st.sampled_from((PYTHON, BASH, LLAMA, None))) for pid in pids},
    )


def lineage(processes: ProcessTable, pid: int) -> set[int]:
    """Return a process and its ancestors, init apart."""
    found = set()
    while pid > 1 and pid in processes.processes:
        found.add(pid)
        pid = processes.processes[pid].parent_pid
    return found


@settings(max_examples=50, deadline=None)
@given(tables())
def test_no_process_is_charged_to_one_server_while_another_has_the_same_claim(
    processes: ProcessTable,
) -> None:
    """An owner is alone at the nearest listener in the process's line, else under the nearest launcher."""
    for pid, owner in find_owners(processes, list(processes.processes)).items():
        own = lineage(processes, pid)
        listening = {member: servers_of(processes, {member}) for member in own}
        launched = {
            member: {
                server
                for server, listeners in processes.listeners.items()
                if any(member in lineage(processes, listener) for listener in listeners)
            }
            for member in own - {pid}
        }
        # A child's PID is above its parent's here, so the nearest is the largest.
        direct = [member for member in own if listening[member]]
        launchers = [member for member in launched if launched[member]]
        claims = listening[max(direct)] if direct else launched[max(launchers)] if launchers else set()
        if owner.server is None:
            assert owner.match is Match.NONE
            assert not direct or len(claims) > 1
        else:
            assert claims == {owner.server}
        if len(claims) > 1:
            assert owner.server is None


def servers_of(processes: ProcessTable, pids: set[int]) -> set[str]:
    """Return the servers that one of these processes listens for."""
    return {server for server, listeners in processes.listeners.items() if pids & set(listeners)}
