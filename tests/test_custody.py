"""Engines that outlive their server: an orphan in the ledger, and never a live server's child."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.custody import GRACE_SECONDS, Custody
from kvwatch.owners import Owner, find_owners
from kvwatch.readings import Home, ProcessIdentity, ProcessRole, ProcessTable
from kvwatch.snapshot import Match

PYTHON = "/usr/bin/python3.12"
SERVER, ENGINE, BASH = 10, 11, 5
URL = {"chat": "http://127.0.0.1:8000"}


def process(pid: int, parent: int, role: ProcessRole | None, **fields: object) -> ProcessIdentity:
    """Return a process that started at the tick of its number."""
    usual = {"name": "vllm", "start_ticks": pid, "executable": PYTHON, "role": role}
    return ProcessIdentity(pid=pid, parent_pid=parent, **(usual | fields))  # type: ignore[arg-type]


API = process(SERVER, 1, ProcessRole.SERVER)
CORE = process(ENGINE, SERVER, ProcessRole.ENGINE, name="VLLM::EngineCor")
LEFT = replace(CORE, parent_pid=1)


def table(*processes: ProcessIdentity, listeners: tuple[int, ...] = (), **fields: object) -> ProcessTable:
    """Return a table in which these PIDs listen for chat."""
    return ProcessTable(
        processes={one.pid: one for one in processes},
        listeners={"chat": listeners} if listeners else {},
        **fields,  # type: ignore[arg-type]
    )


ALIVE = table(API, CORE, listeners=(SERVER,))
GONE = table(LEFT)


def owners_after(*polls: tuple[float, ProcessTable], pid: int = ENGINE) -> list[Owner]:
    """Return whose the engine is at each poll."""
    custody, told = Custody(), []
    for at, seen in polls:
        custody, owners = custody.advance(seen, find_owners(seen, [pid]), watched=URL, at=at)
        told.append(owners[pid])
    return told


def test_an_engine_left_behind_is_an_orphan_of_its_server() -> None:
    """Not at once: an engine that shuts down after its server takes a moment."""
    late = GRACE_SECONDS + 5
    first, lost, still = owners_after((0, ALIVE), (5, GONE), (5 + late, GONE))
    assert (first.server, first.match) == ("chat", Match.TREE)
    assert lost.orphan_of is None
    assert (still.server, still.orphan_of) == (None, "chat")


def test_one_that_kvwatch_never_saw_with_a_server_is_nobodys_orphan() -> None:
    """Started later, kvwatch knows only that an engine without a parent is nobody's."""
    *_, last = owners_after((0, GONE), (GRACE_SECONDS + 1, GONE))
    assert last.orphan_of == ""


def test_a_restarted_server_does_not_inherit_the_orphan() -> None:
    """The same address, another process: the old engine's memory stays apart."""
    again = process(20, 1, ProcessRole.SERVER)
    new = process(21, 20, ProcessRole.ENGINE, name="VLLM::EngineCor")
    both = table(LEFT, again, new, listeners=(20,))
    assert owners_after((0, ALIVE), (5, both), (GRACE_SECONDS + 6, both))[-1].orphan_of == "chat"
    assert owners_after((0, ALIVE), (5, both), (GRACE_SECONDS + 6, both), pid=21)[-1].server == "chat"


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(table(API, CORE), id="it does not listen for a while"),
        pytest.param(table(API, CORE, listeners=(SERVER,)), id="nothing happened"),
    ],
)
def test_a_live_servers_child_is_no_orphan(later: ProcessTable) -> None:
    """A reload, a changed port or a scan that failed costs nobody its engine."""
    told = owners_after((0, ALIVE), (20, later), (60, later), (120, later))
    assert [owner.orphan_of for owner in told] == [None] * 4
    assert told[-1].server == "chat"


def test_a_number_that_is_used_again_is_another_process() -> None:
    """What was known of the old one does not stick to the new one."""
    stranger = process(ENGINE, BASH, ProcessRole.OTHER, start_ticks=999, name="python3")
    shell = process(BASH, 1, ProcessRole.OTHER, name="bash", executable="/usr/bin/bash")
    told = owners_after((0, ALIVE), (20, table(stranger, shell)), (60, table(stranger, shell)))
    assert told[-1] == Owner(None, Match.NONE)


def test_a_trainer_without_a_parent_is_no_orphan() -> None:
    """Only an engine's own children are ever called so."""
    trainer = process(ENGINE, 1, ProcessRole.OTHER, name="python3")
    assert owners_after((0, table(trainer)), (60, table(trainer)))[-1].orphan_of is None


# Containers and units


def boxed(one: ProcessIdentity, place: str) -> ProcessIdentity:
    """Return the process in a container."""
    return replace(one, container=place * 64, group=f"/docker/{place * 64}")


def test_a_ray_actor_belongs_to_the_server_of_its_container() -> None:
    """Neither its line nor a launcher ties it to the server: the container does."""
    api = boxed(API, "a")
    actor = boxed(process(30, 1, ProcessRole.ACTOR, name="ray::RayWorker"), "a")
    seen = table(api, actor, listeners=(SERVER,))
    assert find_owners(seen, [30])[30] == Owner("chat", Match.CGROUP)


def test_two_servers_in_one_container_are_not_told_apart_by_it() -> None:
    """Then whose the actor is cannot be told."""
    api, other = boxed(API, "a"), boxed(process(20, 1, ProcessRole.SERVER), "a")
    actor = boxed(process(30, 1, ProcessRole.ACTOR, name="ray::RayWorker"), "a")
    seen = ProcessTable(
        processes={one.pid: one for one in (api, other, actor)},
        listeners={"chat": (SERVER,), "code": (20,)},
    )
    owner = find_owners(seen, [30])[30]
    assert owner.ambiguous
    assert "chat, code" in owner.detail


def test_another_container_is_another_owner() -> None:
    """A process of a container without a server is nobody's."""
    seen = table(
        boxed(API, "a"), boxed(process(30, 1, ProcessRole.OTHER, name="train"), "b"), listeners=(SERVER,)
    )
    assert find_owners(seen, [30])[30] == Owner(None, Match.NONE)


@pytest.mark.parametrize(
    "home, owner",
    [
        pytest.param(Home(container="bbbbbbbbbbbb"), Owner("chat", Match.CONFIGURED), id="by its beginning"),
        pytest.param(Home(container="cccccccccccc"), Owner(None, Match.NONE), id="another container"),
        pytest.param(Home(unit="vllm.service"), Owner(None, Match.NONE), id="a service"),
    ],
)
def test_a_configured_container_names_the_owner(home: Home, owner: Owner) -> None:
    """Where neither port nor tree can tell, the configuration does."""
    seen = table(boxed(process(30, 1, None), "b"), homes={"chat": home})
    assert find_owners(seen, [30])[30] == owner


def test_a_hidden_process_is_not_nobodys() -> None:
    """It exists, and whose it is cannot be seen."""
    owner = find_owners(table(API, listeners=(SERVER,), hidden=frozenset({30})), [30])[30]
    assert owner.ambiguous
    assert owner.reason == "permission"
