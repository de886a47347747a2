"""What hardly changes in a process's life is read once, and again when exec or a title changed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import ProcessRole
from tests.test_procfs import FakeProc

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.readings import ProcessIdentity
    from kvwatch.sources.procfs import ProcfsSource

ID = "3f" * 32


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """Return a /proc with one process, as a container runtime is starting it."""
    proc = FakeProc(tmp_path)
    put(proc, name="runc:[2:INIT]", group="0::/system.slice/containerd.service", words="runc\0init")
    return proc


def put(proc: FakeProc, *, name: str, group: str, words: str, ticks: int = 500) -> None:
    """Write the process anew."""
    proc.process(10, 1, name=name, ticks=ticks)
    (proc.root / "10" / "cgroup").write_text(f"{group}\n")
    (proc.root / "10" / "cmdline").write_bytes(words.encode() + b"\0")


def read(source: ProcfsSource) -> ProcessIdentity:
    """Return the process as it is read now."""
    return source.read([10], []).processes[10]


def test_exec_and_a_title_are_noticed(proc: FakeProc) -> None:
    """Before exec it is the runtime's, in the runtime's service; then it is a server's; then an engine."""
    source = proc.source()
    before = read(source)
    assert (before.role, before.container, before.unit) == (ProcessRole.OTHER, None, "containerd.service")
    put(proc, name="python3", group=f"0::/docker/{ID}", words="python3\0-c\0multiprocessing")
    forked = read(source)
    assert (forked.role, forked.container, forked.unit) == (None, ID, None)
    put(proc, name="VLLM::EngineCor", group=f"0::/docker/{ID}", words="VLLM::EngineCore")
    titled = read(source)
    assert (titled.role, titled.container, titled.group) == (ProcessRole.ENGINE, ID, f"/docker/{ID}")


def test_nothing_is_read_twice(proc: FakeProc) -> None:
    """From the second poll on one file of each process is read, its stat."""
    source = proc.source()
    first = read(source)
    for name in ("exe", "cgroup", "cmdline"):
        (proc.root / "10" / name).unlink()
    assert read(source) == first


def test_another_process_under_the_number_is_read_anew(proc: FakeProc) -> None:
    """Name and number alone do not make it the same."""
    source = proc.source()
    read(source)
    put(proc, name="runc:[2:INIT]", group=f"0::/docker/{ID}", words="runc\0init", ticks=999)
    assert read(source).container == ID


def test_what_has_ended_is_forgotten(proc: FakeProc) -> None:
    """The cache is as large as the table."""
    source = proc.source()
    read(source)
    assert len(source._traits._known) == 1
    proc.end(10)
    source.read([10], [])
    assert source._traits._known == {}
