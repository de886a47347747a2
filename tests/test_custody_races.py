"""Moments at which a live server's engine could be taken for an orphan, or an orphan for a live server's."""

from __future__ import annotations

from dataclasses import replace

from kvwatch.custody import GRACE_SECONDS, Custody
from kvwatch.owners import NOBODY, UNTOLD, Owner, find_owners
from kvwatch.readings import ProcessIdentity, ProcessRole, ProcessTable, Reason
from kvwatch.snapshot import Match

PYTHON = "/usr/bin/python3.12"
LAUNCHER, API, OTHER_API, CORE, WORKER = 9, 10, 11, 20, 21
URL = {"chat": "http://127.0.0.1:8000"}
LATE = GRACE_SECONDS * 3
CHAT = Owner("chat", Match.TREE)
ORPHAN = Owner(None, Match.NONE, orphan_of="chat")


def process(pid: int, parent: int, role: ProcessRole | None = ProcessRole.SERVER) -> ProcessIdentity:
    """Return a process that started at the tick of its number."""
    return ProcessIdentity(
        pid=pid, start_ticks=pid, parent_pid=parent, name=f"p{pid}", executable=PYTHON, role=role
    )


def core(parent: int) -> ProcessIdentity:
    """Return the engine core under a parent."""
    return process(CORE, parent, ProcessRole.ENGINE)


def worker(parent: int = CORE) -> ProcessIdentity:
    """Return a worker, which holds the memory."""
    return process(WORKER, parent, ProcessRole.ENGINE)


def table(*processes: ProcessIdentity, chat: tuple[int, ...] = ()) -> ProcessTable:
    """Return a table in which these PIDs listen for chat."""
    return ProcessTable(
        processes={one.pid: one for one in processes}, listeners={"chat": chat} if chat else {}
    )


def history(
    *polls: tuple[float, ProcessTable], pid: int = CORE, watched: dict[str, str] | None = None
) -> list[Owner]:
    """Return whose a process is at each poll; `watched` holds from the second poll on."""
    custody, told = Custody(), []
    for at, seen in polls:
        names = URL if watched is None or not told else watched
        custody, owners = custody.advance(seen, find_owners(seen, [pid]), watched=names, at=at)
        told.append(owners[pid])
    return told


ALIVE = table(process(API, 1), core(API), chat=(API,))
GONE = table(core(1))


def test_until_the_grace_is_over_the_memory_is_its_servers() -> None:
    """An API server that crashed, its engine shutting down: nobody else's memory."""
    told = history((0, ALIVE), (5, GONE), (5 + GRACE_SECONDS - 0.1, GONE), (5 + GRACE_SECONDS, GONE))
    assert told == [CHAT, CHAT, CHAT, ORPHAN]


def test_a_long_interval_alone_is_no_proof() -> None:
    """One poll that saw it alone is not enough, however long ago the last was."""
    assert history((0, ALIVE), (3600, GONE)) == [CHAT, UNTOLD]  # forgotten after so long, and engine by title
    assert history((0, ALIVE), (300, GONE), (600, GONE)) == [CHAT, CHAT, ORPHAN]


def test_while_a_restarted_server_listens_the_old_engine_is_nobodys_for_certain() -> None:
    """Neither the new server's nor yet an orphan: the reason says what is going on."""
    both = table(core(1), process(30, 1), chat=(30,))
    first, pending, last = history((0, ALIVE), (5, both), (5 + LATE, both))
    assert (first, pending, last) == (CHAT, UNTOLD, ORPHAN)
    assert pending.reason is Reason.AMBIGUOUS
    assert "outlived" in pending.detail


def test_a_poll_that_read_nothing_changes_nothing() -> None:
    """A hanging /proc is no death: the clock of an orphan starts when the loss is seen."""
    nothing = ProcessTable(reason=Reason.TIMEOUT)
    told = history((0, ALIVE), (5, nothing), (5 + LATE, nothing), (10 + LATE, ALIVE))
    assert told == [CHAT, UNTOLD, UNTOLD, CHAT]
    assert told[1].reason is Reason.TIMEOUT


def test_a_line_that_could_not_be_read_to_its_end_proves_no_death() -> None:
    """The parent is there and may not be seen."""
    torn = table(worker(), core(API))
    told = history(
        (0, table(process(API, 1), core(API), worker(), chat=(API,))), (5, torn), (5 + LATE, torn), pid=WORKER
    )
    assert told == [CHAT] * 3


def test_a_worker_of_an_engine_core_that_died_is_its_servers_while_that_lives() -> None:
    """Only when the API server has gone too it is an orphan."""
    whole = table(process(API, 1), core(API), worker(), chat=(API,))
    crashed = table(process(API, 1), worker(1), chat=(API,))
    alone = table(worker(1))
    told = history(
        (0, whole), (5, crashed), (5 + LATE, crashed), (10 + LATE, alone), (10 + 2 * LATE, alone), pid=WORKER
    )
    assert told == [CHAT, CHAT, CHAT, CHAT, ORPHAN]


def test_one_of_several_api_servers_is_enough() -> None:
    """The launcher was killed, its children serve on."""
    whole = table(
        process(LAUNCHER, 1), process(API, LAUNCHER), process(OTHER_API, LAUNCHER), core(LAUNCHER),
        chat=(API, OTHER_API),
    )  # fmt: skip
    without = table(process(API, 1), process(OTHER_API, 1), core(1), chat=(API, OTHER_API))
    last_one = table(process(OTHER_API, 1), core(1), chat=(OTHER_API,))
    told = history((0, whole), (5, without), (LATE, last_one), (2 * LATE, GONE), (3 * LATE, GONE))
    assert told == [CHAT, CHAT, CHAT, CHAT, ORPHAN]


def test_a_server_that_no_longer_listens_and_lives_keeps_its_engine() -> None:
    """A graceful shutdown closes the port first."""
    closing = table(process(API, 1), core(API))
    assert history((0, ALIVE), (5, closing), (5 + LATE, closing)) == [CHAT] * 3


def test_a_name_that_was_given_to_another_server_takes_no_memory_along() -> None:
    """After a new configuration the old server is not watched, and nobody's orphan as long as it lives."""
    elsewhere = {"chat": "http://127.0.0.1:9000"}
    alive = table(process(API, 1), core(API))
    assert history((0, ALIVE), (5, alive), (5 + LATE, alive), watched=elsewhere) == [CHAT, NOBODY, NOBODY]
    told = history((0, ALIVE), (5, GONE), (5 + LATE, GONE), watched=elsewhere)
    assert told == [CHAT, UNTOLD, ORPHAN]


def test_an_orphan_that_was_reused_as_a_number_is_forgotten() -> None:
    """Another process under the number of an orphan is a live server's, at once."""
    again = replace(core(30), start_ticks=999)
    told = history(
        (0, ALIVE), (5, GONE), (5 + LATE, GONE), (6 + LATE, table(again, process(30, 1), chat=(30,)))
    )
    assert told[2:] == [ORPHAN, CHAT]


def test_what_has_not_been_seen_for_long_is_not_remembered() -> None:
    """So that a machine on which servers come and go costs no memory."""
    custody, _ = Custody().advance(ALIVE, find_owners(ALIVE, [CORE]), watched=URL, at=0)
    assert len(custody.wards) == 1
    custody, _ = custody.advance(ProcessTable(), {}, watched=URL, at=599)
    assert len(custody.wards) == 1
    custody, _ = custody.advance(ProcessTable(), {}, watched=URL, at=601)
    assert custody.wards == {}
