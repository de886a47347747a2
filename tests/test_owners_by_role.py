"""Whose a GPU process is where roles speak: supervisors, container inits, proxies, Ray, inherited sockets."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvwatch.kinship import speakers, was_left_behind, without_younger
from kvwatch.owners import NOBODY, UNTOLD, Owner, find_owners
from kvwatch.readings import ProcessIdentity, ProcessRole, ProcessTable
from kvwatch.snapshot import Match

SERVER, LAUNCHER, ENGINE = ProcessRole.SERVER, ProcessRole.LAUNCHER, ProcessRole.ENGINE
ACTOR, OTHER = ProcessRole.ACTOR, ProcessRole.OTHER
PYTHON, BASH, TINI, NGINX = "/usr/bin/python3.12", "/usr/bin/bash", "/sbin/tini", "/usr/sbin/nginx"
SYSTEMD = "/usr/lib/systemd/systemd"
GPU = 50
"""The process that holds memory, in every case."""

CHAT_TREE, CHAT_CGROUP = Owner("chat", Match.TREE), Owner("chat", Match.CGROUP)


@dataclass(frozen=True)
class Is:
    """A process: its parent, role, program, and the container or service that it is in."""

    parent: int
    role: ProcessRole | None = OTHER
    program: str | None = PYTHON
    box: str | None = None


def table(processes: dict[int, Is], **listeners: tuple[int, ...]) -> ProcessTable:
    """Return a table; a box that ends in `.service` is one, any other a container."""
    return ProcessTable(
        processes={pid: _identity(pid, one) for pid, one in processes.items()}, listeners=listeners
    )


def _identity(pid: int, one: Is) -> ProcessIdentity:
    unit = one.box if one.box and one.box.endswith(".service") else None
    return ProcessIdentity(
        pid=pid,
        start_ticks=pid,
        parent_pid=one.parent,
        name=f"p{pid}",
        executable=one.program,
        role=one.role,
        container=one.box * 64 if one.box and unit is None else None,
        unit=unit,
        group=one.box and f"/{one.box}",
    )


CASES: dict[str, tuple[ProcessTable, Owner]] = {
    "an engine core beside its API servers, under vLLM's launcher": (
        table({9: Is(1, SERVER), 10: Is(9, SERVER), 11: Is(9, SERVER), GPU: Is(9, ENGINE)}, chat=(10, 11)),
        CHAT_TREE),
    "an engine core beside a front end of another program": (
        table({9: Is(1, SERVER), 10: Is(9, OTHER, "/opt/vllm-rs"), GPU: Is(9, ENGINE)}, chat=(10,)),
        CHAT_TREE),
    "a training job of a supervisor that runs on Python too": (
        table({9: Is(1), 10: Is(9, SERVER), GPU: Is(9)}, chat=(10,)), UNTOLD),
    "the engine of a server that is not watched, under that supervisor": (
        table({9: Is(1), 10: Is(9, SERVER), 20: Is(9, SERVER), GPU: Is(20, ENGINE)}, chat=(10,)), NOBODY),
    "an engine that a container's init has adopted, its server restarted": (
        table({9: Is(1, OTHER, TINI, "a"), 10: Is(9, SERVER, PYTHON, "a"),
               GPU: Is(9, ENGINE, PYTHON, "a")}, chat=(10,)), NOBODY),
    "an engine that a supervisor on Python may have adopted": (
        table({9: Is(1, OTHER, PYTHON, "a"), 10: Is(9, SERVER, PYTHON, "a"),
               GPU: Is(9, ENGINE, PYTHON, "a")}, chat=(10,)), UNTOLD),
    "a worker under an engine core that was adopted": (
        table({10: Is(1, SERVER), 49: Is(1, ENGINE), GPU: Is(49, ENGINE)}, chat=(10,)), NOBODY),
    "a Ray worker in the server's container": (
        table({8: Is(1, OTHER, "/opt/raylet", "a"), 10: Is(1, SERVER, PYTHON, "a"),
               GPU: Is(8, ACTOR, PYTHON, "a")}, chat=(10,)), CHAT_CGROUP),
    "a Ray worker outside of containers": (
        table({8: Is(1, OTHER, "/opt/raylet"), 10: Is(1, SERVER), GPU: Is(8, ACTOR)}, chat=(10,)), UNTOLD),
    "a Ray worker beside a llama-server, which uses no Ray": (
        table({8: Is(1, OTHER, "/opt/raylet"), 10: Is(1, SERVER, "/opt/llama-server"),
               GPU: Is(8, ACTOR)}, chat=(10,)), NOBODY),
    "engines without a server of their own, in the server's container": (
        table({8: Is(1, LAUNCHER, PYTHON, "a"), 10: Is(1, SERVER, PYTHON, "a"),
               GPU: Is(8, ENGINE, PYTHON, "a")}, chat=(10,)), CHAT_CGROUP),
    "a server behind a proxy in one container": (
        table({8: Is(1, OTHER, NGINX, "a"), GPU: Is(1, SERVER, "/opt/llama-server", "a")}, chat=(8,)),
        CHAT_CGROUP),
    "a second server that is not watched, in the same container": (
        table({10: Is(1, SERVER, PYTHON, "a"), GPU: Is(1, SERVER, PYTHON, "a")}, chat=(10,)), NOBODY),
    "a worker of the application, in the same container": (
        table({9: Is(1, OTHER, BASH, "a"), 10: Is(9, OTHER, PYTHON, "a"),
               GPU: Is(9, OTHER, PYTHON, "a")}, chat=(10,)), CHAT_CGROUP),
    "another program in the server's container": (
        table({10: Is(1, SERVER, PYTHON, "a"), GPU: Is(1, OTHER, "/opt/train", "a")}, chat=(10,)), NOBODY),
    "a program behind a proxy in one container": (
        table({8: Is(1, OTHER, NGINX, "a"), GPU: Is(1, OTHER, PYTHON, "a")}, chat=(8,)), UNTOLD),
    "a notebook in the service that runs the server": (
        table({10: Is(1, SERVER, PYTHON, "hub.service"), GPU: Is(1, OTHER, PYTHON, "hub.service")},
              chat=(10,)), UNTOLD),
    "another program in the service that runs the server": (
        table({10: Is(1, SERVER, PYTHON, "hub.service"), GPU: Is(1, OTHER, "/opt/train", "hub.service")},
              chat=(10,)), NOBODY),
    "a Ray worker in the server's service": (
        table({10: Is(1, SERVER, PYTHON, "llm.service"), GPU: Is(1, ACTOR, PYTHON, "llm.service")},
              chat=(10,)), CHAT_CGROUP),
    "another container of the same pod": (
        table({10: Is(1, SERVER, PYTHON, "a"), GPU: Is(1, OTHER, PYTHON, "b")}, chat=(10,)), NOBODY),
    "an engine core that was forked with the socket": (
        table({10: Is(1, SERVER), GPU: Is(10, ENGINE)}, chat=(10, GPU)), CHAT_TREE),
    "only a forked engine core still holds the socket": (
        table({GPU: Is(1, ENGINE)}, chat=(GPU,)), NOBODY),
    "a job of the user whose service manager holds the socket": (
        table({9: Is(1, OTHER, SYSTEMD), 10: Is(9, SERVER), GPU: Is(9, OTHER)}, chat=(9, 10)), NOBODY),
    "a supervisor holds the socket for the server that it starts": (
        table({9: Is(1, OTHER, BASH), 10: Is(9, SERVER), GPU: Is(9, OTHER)}, chat=(9, 10)), NOBODY),
    "a compiler that the server started holds its socket too": (
        table({10: Is(1, SERVER), 30: Is(10, OTHER, "/usr/bin/ninja"), GPU: Is(10, ENGINE)}, chat=(10, 30)),
        CHAT_TREE),
}  # fmt: skip


@pytest.mark.parametrize("situation", CASES)
def test_whose_process_it_is(situation: str) -> None:
    """Nobody is charged for what may be another's, and a doubt has its reason."""
    processes, expected = CASES[situation]
    owner = find_owners(processes, [GPU])[GPU]
    assert owner == expected
    assert bool(owner.detail) is owner.ambiguous


LEFT_BEHIND: dict[str, tuple[dict[int, Is], bool]] = {
    "init is the parent": ({1: Is(0, OTHER, SYSTEMD), GPU: Is(1, ENGINE)}, True),
    "init is the parent, and not in the table": ({GPU: Is(1, ENGINE)}, True),
    "the shell that started the server, as a subreaper": ({9: Is(1, OTHER, BASH), GPU: Is(9, ENGINE)}, True),
    "a container's init": ({9: Is(1, OTHER, TINI), GPU: Is(9, ENGINE)}, True),
    "a worker below an engine core of that kind": ({49: Is(1, ENGINE), GPU: Is(49, ENGINE)}, True),
    "the API server lives": ({9: Is(1, SERVER), GPU: Is(9, ENGINE)}, False),
    "the API server lives, its program was upgraded": (
        {9: Is(1, OTHER, f"{PYTHON} (deleted)"), GPU: Is(9, ENGINE)}, False),
    "a program of one's own embeds the engine": ({9: Is(1, OTHER, PYTHON), GPU: Is(9, ENGINE)}, False),
    "a replica of Ray Serve embeds it": ({9: Is(1, ACTOR, "/opt/python"), GPU: Is(9, ENGINE)}, False),
    "a headless launcher lives": ({9: Is(1, LAUNCHER, "/opt/python"), GPU: Is(9, ENGINE)}, False),
    "the parent's program may not be read": ({9: Is(1, None, None), GPU: Is(9, ENGINE)}, False),
    "the parent cannot be seen": ({GPU: Is(9, ENGINE)}, False),
    "a llama-server under init": ({GPU: Is(1, SERVER, "/opt/llama-server")}, False),
    "a training job under init": ({GPU: Is(1, OTHER)}, False),
}  # fmt: skip


@pytest.mark.parametrize("situation", LEFT_BEHIND)
def test_an_engine_that_has_lost_its_server(situation: str) -> None:
    """It is said only where no parent can be the one that started it."""
    processes, lost = LEFT_BEHIND[situation]
    assert was_left_behind(table(processes), GPU) is lost


def test_a_configured_process_speaks_whatever_it_is() -> None:
    """The person who configured it knows."""
    one = table({GPU: Is(1, ENGINE)}, chat=(GPU,))
    assert speakers(one) == {}
    told = ProcessTable(processes=one.processes, listeners=one.listeners, configured=frozenset({"chat"}))
    assert speakers(told) == {"chat": (GPU,)}


@pytest.mark.parametrize("asked, kept", [(GPU - 1, False), (GPU, True), (GPU + 1, True)])
def test_a_process_that_started_after_the_driver_was_asked_is_another(asked: int, kept: bool) -> None:  # noqa: FBT001
    """Its number belonged to the one that the driver meant."""
    seen = without_younger(table({10: Is(1), GPU: Is(10)}), [GPU, 77], asked)
    assert (GPU in seen.processes) is kept
    assert 10 in seen.processes
