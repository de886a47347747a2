"""A server whose container or service is configured: what is in it is its own, on a made-up /proc."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.owners import Owner, find_owners
from kvwatch.readings import Home, Reason
from kvwatch.snapshot import Match
from tests.test_procfs import FakeProc, server

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.sources.procfs import ServerAddress

ID = "3f" * 32
IN_CONTAINER = replace(server("10.1.2.3"), home=Home(container=ID[:12]))
IN_UNIT = replace(server("10.1.2.3"), home=Home(unit="vllm.service"))


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """Return a /proc with a container of three processes, a service of one, and a stranger."""
    proc = FakeProc(tmp_path)
    put(proc, 10, 1, f"0::/docker/{ID}", "/usr/bin/vllm\0serve\0tiny")
    put(proc, 11, 10, f"0::/docker/{ID}", "VLLM::EngineCore")
    put(proc, 20, 1, "0::/system.slice/vllm.service", "/usr/bin/vllm\0serve\0tiny")
    put(proc, 30, 1, "0::/user.slice", "train")
    return proc


def put(proc: FakeProc, pid: int, parent: int, group: str, words: str) -> None:
    """Add a process with its cgroup and its words."""
    proc.process(pid, parent)
    (proc.root / str(pid) / "cgroup").write_text(f"{group}\n")
    (proc.root / str(pid) / "cmdline").write_bytes(words.encode() + b"\0")


@pytest.mark.parametrize("address, mine", [(IN_CONTAINER, 11), (IN_UNIT, 20)], ids=["container", "unit"])
def test_what_is_in_the_home_is_the_servers(proc: FakeProc, address: ServerAddress, mine: int) -> None:
    """Wherever its port is reached, what holds a GPU in its home is its own; the stranger is not."""
    table = proc.source().read([mine, 30], [address])
    assert [outcome.reason for outcome in table.outcomes] == [None]
    owners = find_owners(table, [mine, 30])
    assert (owners[mine].server, owners[mine].match) == ("llm", Match.CONFIGURED)
    assert owners[30] == Owner(None, Match.NONE)


def test_an_empty_home_is_said(proc: FakeProc) -> None:
    """Nobody is taken for it."""
    other = replace(IN_CONTAINER, home=Home(container="9" * 12))
    table = proc.source().read([11], [other])
    assert [outcome.reason for outcome in table.outcomes] == [Reason.NOT_FOUND]
    assert find_owners(table, [11])[11].server is None
