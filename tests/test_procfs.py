"""ProcfsSource on a made-up /proc: tables of situations that a real machine shows too seldom."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason
from kvwatch.sources.processes import parse_stat
from kvwatch.sources.procfs import ProcfsSource, ServerAddress
from kvwatch.sources.sockets import find_holders, local_addresses

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
BOOT = 1_700_000_000
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

# As the kernel writes them on a little-endian machine.
LOOPBACK_4 = "0100007F"
LOOPBACK_6 = "00000000000000000000000001000000"
MAPPED_4 = "0000000000000000FFFF00000100007F"
OTHER_4 = "0200007F"
ANY_4 = "0" * 8
ANY_6 = "0" * 32
LISTEN, ESTABLISHED = "0A", "01"
REMOTE = {LISTEN: "0" * 32, ESTABLISHED: "0A" * 16}


def server(
    host: str = "127.0.0.1", *, name: str = "llm", port: int = 8000, pid: int | None = None
) -> ServerAddress:
    """Make a configured server."""
    return ServerAddress(name=name, host=host, port=port, pid=pid)


@dataclass
class Clock:
    """A clock that stands still until it is told."""

    now: float = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@dataclass
class FakeProc:
    """A /proc made of plain files."""

    root: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        (self.root / "self" / "net").mkdir(parents=True)
        (self.root / "stat").write_text(f"cpu  1 2 3\nintr 5 0 0\nbtime {BOOT}\nprocesses 9\n")
        self.listen()

    def source(self) -> ProcfsSource:
        """Make a source that reads this tree."""
        return ProcfsSource(root=self.root, clock=self.clock, rescan_seconds=30.0)

    def process(
        self,
        pid: int,
        parent: int = 1,
        *,
        ticks: int = 500,
        name: str = "python3",
        state: str = "S",
        threads: int = 1,
        sockets: tuple[int, ...] = (),
    ) -> None:
        """Add a process, or put another in its place."""
        home = self.root / str(pid)
        shutil.rmtree(home, ignore_errors=True)
        (home / "fd").mkdir(parents=True)
        (home / "stat").write_text(stat_line(pid, name, state, parent, threads, ticks))
        (home / "exe").symlink_to("/usr/bin/python3.11")
        (home / "fd" / "0").symlink_to("/dev/null")
        for at, inode in enumerate(sockets, start=3):
            (home / "fd" / str(at)).symlink_to(f"socket:[{inode}]")

    def end(self, pid: int) -> None:
        """Let a process disappear."""
        shutil.rmtree(self.root / str(pid))

    def listen(self, *rows: tuple[str, int, str, int]) -> None:
        """Write the socket tables from (hex address, port, state, inode)."""
        for table, width in (("tcp", 8), ("tcp6", 32)):
            lines = [
                f"{at:4}: {address}:{port:04X} {REMOTE[state][:width]}:0000 {state} 00000000:00000000"
                f" 00:00000000 00000000  1000        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
                for at, (address, port, state, inode) in enumerate(rows)
                if len(address) == width
            ]
            (self.root / "self" / "net" / table).write_text(HEADER + "".join(lines))


def stat_line(pid: int, name: str, state: str, parent: int, threads: int, ticks: int) -> str:
    """Write a /proc/PID/stat of 52 fields."""
    middle = f"{pid} {pid} 0 -1 4194304 100 0 0 0 0 0 0 0 20 0 {threads} 0 {ticks}"
    return f"{pid} ({name}) {state} {parent} {middle}" + " 0" * 30 + "\n"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """Make a /proc with an init that a launcher, an API server and two engine processes descend from."""
    made = FakeProc(tmp_path / "proc")
    made.process(1, 0, ticks=1, name="systemd")
    made.process(100, 1, ticks=400, name="bash")
    made.process(200, 100, ticks=500, name="vllm", sockets=(11,))
    made.process(300, 200, ticks=600, name="VLLM::EngineCor")
    made.process(301, 300, ticks=700, name="VLLM::Worker_TP")
    made.process(900, 1, ticks=450, name="sshd", sockets=(99,))
    made.listen((ANY_4, 8000, LISTEN, 11), (ANY_4, 22, LISTEN, 99))
    return made


@pytest.mark.parametrize(
    "name", ["python3", "tmux: server", "a) S 1 (b", "()", ")", "", "VLLM::EngineCor", "new\nline"]
)
def test_stat_with_any_name(name: str) -> None:
    """A name is what stands between the first and the last parenthesis, whatever it holds."""
    stat = parse_stat(stat_line(7, name, "S", 3, 2, 12345).encode())
    assert stat is not None
    assert (name, 3, 12345, 2) == (stat.name, stat.parent_pid, stat.start_ticks, stat.threads)


@pytest.mark.parametrize("data", [b"", b"7", b"7 (x", b"7 (x) S", b"7 (x) S one" + b" 0" * 40, b")7("])
def test_broken_stat(data: bytes) -> None:
    """What is no stat line identifies nobody."""
    assert parse_stat(data) is None


def test_identity_and_ancestors(proc: FakeProc) -> None:
    """A GPU process comes with its identity and every ancestor up to the one whose parent is 0."""
    table = proc.source().read([301], [])
    assert set(table.processes) == {301, 300, 200, 100, 1}
    worker = table.processes[301]
    assert (
        worker.pid,
        worker.start_ticks,
        worker.parent_pid,
        worker.name,
    ) == (301, 700, 300, "VLLM::Worker_TP")
    assert worker.started_at == BOOT + 700 / TICKS
    assert worker.executable == "/usr/bin/python3.11"


@pytest.mark.parametrize("pid", [0, -1, 4242, 2**32 - 1])
def test_pid_of_nobody(proc: FakeProc, pid: int) -> None:
    """A PID that /proc does not have is left out, and disturbs no other."""
    assert set(proc.source().read([pid, 100], []).processes) == {1, 100}


def test_unknown_parts_are_none(proc: FakeProc) -> None:
    """Without boot time and without a readable executable both are unknown."""
    (proc.root / "stat").write_text("cpu  1 2 3\n")
    (proc.root / "1" / "exe").unlink()
    init = proc.source().read([1], []).processes[1]
    assert init.started_at is None
    assert init.executable is None


def test_boot_time_follows_a_set_clock(proc: FakeProc) -> None:
    """A flicker of one second moves no start time; a clock that was set does, after a while."""
    source = proc.source()
    seen = []
    for btime in (BOOT, BOOT + 1, BOOT + 3600):
        (proc.root / "stat").write_text(f"btime {btime}\n")
        seen.append(source.read([1], []).processes[1].started_at)
        proc.clock.now += 31
    assert seen == [BOOT + 1 / TICKS, BOOT + 1 / TICKS, BOOT + 3600 + 1 / TICKS]


def test_zombie_is_identified(proc: FakeProc) -> None:
    """A zombie may still hold device memory, so it keeps its identity."""
    proc.process(301, 300, ticks=700, state="Z")
    assert proc.source().read([301], []).processes[301].start_ticks == 700


def test_loop_of_parents_ends(proc: FakeProc) -> None:
    """Parents that name each other end the walk."""
    proc.process(100, 300, ticks=400)
    assert set(proc.source().read([301], []).processes) == {100, 200, 300, 301}


def when_executable_is_read(monkeypatch: pytest.MonkeyPatch, pid: int, change: Callable[[], None]) -> None:
    """Let something happen in the middle of the reading of one process, once."""
    readlink = os.readlink

    def change_then_read(path: str) -> str:
        if path.endswith(f"/{pid}/exe"):
            monkeypatch.setattr(os, "readlink", readlink)
            change()
        return readlink(path)

    monkeypatch.setattr(os, "readlink", change_then_read)


def test_pid_reused_while_read(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is replaced by another while it is read is discarded."""
    when_executable_is_read(monkeypatch, 301, lambda: proc.process(301, ticks=9999, name="stranger"))
    assert set(proc.source().read([301, 100], []).processes) == {1, 100}


def test_parent_ends_while_walking(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a parent ends in the middle of the walk, and its number is reused, the new parent is followed."""

    def orphan() -> None:
        proc.process(200, 900, ticks=9999, name="stranger")
        proc.process(300, 1, ticks=600)

    when_executable_is_read(monkeypatch, 200, orphan)
    processes = proc.source().read([301], []).processes
    assert set(processes) == {301, 300, 1}
    assert processes[300].parent_pid == 1


def test_parent_younger_than_its_child(proc: FakeProc) -> None:
    """A younger process under a parent's number is no ancestor."""
    proc.process(200, 100, ticks=9999, name="stranger")
    assert set(proc.source().read([301], []).processes) == {301, 300}


@pytest.mark.parametrize(
    "host,rows,expected",
    [
        pytest.param("127.0.0.1", [(LOOPBACK_4, 8000, LISTEN, 11)], [200], id="its address"),
        pytest.param("127.0.0.1", [(ANY_4, 8000, LISTEN, 11)], [200], id="wildcard"),
        pytest.param("127.0.0.1", [(ANY_6, 8000, LISTEN, 11)], [200], id="dual-stack wildcard"),
        pytest.param("127.0.0.1", [(MAPPED_4, 8000, LISTEN, 11)], [200], id="mapped address"),
        pytest.param("::1", [(LOOPBACK_6, 8000, LISTEN, 11)], [200], id="IPv6 address"),
        pytest.param("[::1]", [(ANY_6, 8000, LISTEN, 11)], [200], id="IPv6 in brackets, wildcard"),
        pytest.param("localhost", [(LOOPBACK_6, 8000, LISTEN, 11)], [200], id="localhost over IPv6"),
        pytest.param("LocalHost", [(LOOPBACK_4, 8000, LISTEN, 11)], [200], id="localhost over IPv4"),
        pytest.param("0.0.0.0", [(LOOPBACK_4, 8000, LISTEN, 11)], [200], id="wildcard as a target"),
        pytest.param("127.0.0.1", [(OTHER_4, 8000, LISTEN, 11)], None, id="another address"),
        pytest.param("127.0.0.1", [(LOOPBACK_4, 8001, LISTEN, 11)], None, id="another port"),
        pytest.param("127.0.0.1", [(LOOPBACK_4, 8000, ESTABLISHED, 11)], None, id="a connection"),
        pytest.param("127.0.0.1", [(LOOPBACK_4, 8000, LISTEN, 0)], None, id="a socket without a file"),
        pytest.param("::1", [(ANY_4, 8000, LISTEN, 11)], None, id="IPv6 target, IPv4 wildcard"),
        pytest.param(
            "127.0.0.1",
            [(ANY_4, 8000, LISTEN, 99), (LOOPBACK_4, 8000, LISTEN, 11)],
            [200],
            id="its address goes before the wildcard",
        ),
        pytest.param(
            "127.0.0.1",
            [(ANY_4, 8000, LISTEN, 11), (ANY_6, 8000, LISTEN, 99)],
            [200],
            id="its family's wildcard goes first",
        ),
        pytest.param(
            "localhost",
            [(LOOPBACK_4, 8000, LISTEN, 11), (LOOPBACK_6, 8000, LISTEN, 99)],
            [200, 900],
            id="two servers behind localhost",
        ),
        pytest.param(
            "127.0.0.1",
            [(ANY_4, 8000, LISTEN, 11), (ANY_4, 8000, LISTEN, 99)],
            [200, 900],
            id="a shared port (SO_REUSEPORT)",
        ),
    ],
)
def test_listener(
    proc: FakeProc, host: str, rows: list[tuple[str, int, str, int]], expected: list[int] | None
) -> None:
    """The processes that a connection to the server would reach are its listeners."""
    proc.listen(*rows)
    table = proc.source().read([], [server(host)])
    assert table.listeners == ({} if expected is None else {"llm": tuple(expected)})
    assert [None if expected else Reason.NOT_FOUND] == [outcome.reason for outcome in table.outcomes]


def test_every_holder_of_a_socket(proc: FakeProc) -> None:
    """All processes that share one socket are listeners, and come with their ancestors."""
    proc.process(210, 200, sockets=(5, 11, 11))
    proc.process(211, 200, sockets=(11,))
    table = proc.source().read([], [server()])
    assert table.listeners == {"llm": (200, 210, 211)}
    assert set(table.processes) == {1, 100, 200, 210, 211}


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "2001:4860:4860::8888", "gpu-node.example", "", "no such host", "\u2603", "a\0b"]
)
def test_remote_server(proc: FakeProc, host: str) -> None:
    """A server elsewhere has no listener here, even on a port that is in use here, and that is no error."""
    table = proc.source().read([], [server(host)])
    assert table.listeners == {}
    assert table.outcomes == ()


@pytest.mark.parametrize(
    "link,private", [("pid:[4026531836]", False), ("pid:[4026532201]", True), ("odd", None), (None, None)]
)
def test_pid_namespace(proc: FakeProc, link: str | None, private: bool | None) -> None:  # noqa: FBT001
    """The initial PID namespace is told by its fixed inode; without a link it is unknown."""
    if link is not None:
        (proc.root / "self" / "ns").mkdir()
        (proc.root / "self" / "ns" / "pid").symlink_to(link)
    assert proc.source().private_pid_namespace is private


@pytest.mark.parametrize(
    "link,reason,words",
    [
        ("pid:[4026531836]", Reason.PERMISSION, "CAP_SYS_PTRACE"),
        ("pid:[4026532201]", Reason.NAMESPACE, "hostPID"),
    ],
)
def test_socket_without_visible_holder(proc: FakeProc, link: str, reason: Reason, words: str) -> None:
    """A socket that exists, held by nobody visible, is told apart from silence, with the fix."""
    (proc.root / "self" / "ns").mkdir()
    (proc.root / "self" / "ns" / "pid").symlink_to(link)
    proc.end(200)
    table = proc.source().read([], [server()])
    assert table.listeners == {}
    assert table.outcomes[0].reason is reason
    assert words in table.outcomes[0].detail


def test_half_of_the_sockets_visible(proc: FakeProc) -> None:
    """What can be seen is given, and what is missing is said."""
    proc.listen((ANY_4, 8000, LISTEN, 11), (ANY_4, 8000, LISTEN, 12))
    table = proc.source().read([], [server()])
    assert table.listeners == {"llm": (200,)}
    assert table.outcomes[0].reason is Reason.PERMISSION
    assert "1 of 2 sockets" in table.outcomes[0].detail


def test_no_socket_table(proc: FakeProc) -> None:
    """Without any table the reason names the file; without IPv6's alone nothing is amiss."""
    (proc.root / "self" / "net" / "tcp6").unlink()
    assert proc.source().read([], [server()]).listeners == {"llm": (200,)}
    (proc.root / "self" / "net" / "tcp").unlink()
    outcome = proc.source().read([], [server()]).outcomes[0]
    assert outcome.reason is Reason.NOT_FOUND
    assert "net/tcp" in outcome.detail


def test_walk_is_bounded(proc: FakeProc) -> None:
    """A walk over descriptors stops at its limit and says so."""
    walk = find_holders(proc.root, {11}, max_descriptors=3)
    assert not walk.complete
    assert find_holders(proc.root, {11}, max_descriptors=100).complete


@pytest.mark.parametrize(
    "state,threads,reason",
    [("S", 1, None), ("Z", 1, Reason.NOT_FOUND), ("Z", 4, None), ("X", 1, Reason.NOT_FOUND)],
)
def test_configured_pid(proc: FakeProc, state: str, threads: int, reason: Reason | None) -> None:
    """A configured process is the listener while anything of it runs."""
    proc.process(300, 200, ticks=600, state=state, threads=threads)
    table = proc.source().read([], [server("gpu-node.example", pid=300)])
    assert table.listeners == ({} if reason else {"llm": (300,)})
    assert table.configured == frozenset({"llm"})
    assert [reason] == [outcome.reason for outcome in table.outcomes]
    assert set(table.processes) == {1, 100, 200, 300}


def test_configured_pid_of_nobody(proc: FakeProc) -> None:
    """A configured process that does not exist is not found, although another one listens."""
    table = proc.source().read([], [server(pid=4242)])
    assert table.listeners == {}
    assert table.outcomes[0].reason is Reason.NOT_FOUND


def test_nothing_changes_nothing_is_scanned(proc: FakeProc) -> None:
    """A known listener is only verified, however much time passes: a new holder goes unseen."""
    source = proc.source()
    source.read([301], [server()])
    proc.process(210, 200, sockets=(11,))
    for _ in range(3):
        proc.clock.now += 100
        assert source.read([301], [server()]).listeners == {"llm": (200,)}


def test_new_gpu_process_allows_a_scan(proc: FakeProc) -> None:
    """A process that comes to a GPU is reason enough to look for more listeners, when it is time."""
    source = proc.source()
    source.read([300], [server()])
    proc.process(210, 200, sockets=(11,))
    assert source.read([300, 301], [server()]).listeners == {"llm": (200,)}
    proc.clock.now += 30
    assert source.read([300, 301], [server()]).listeners == {"llm": (200, 210)}


def test_unresolved_server_waits_for_the_next_scan(proc: FakeProc) -> None:
    """A server that is not there is looked for once every rescan time; the reason is told meanwhile."""
    proc.listen()
    source = proc.source()
    assert source.read([], [server()]).outcomes[0].reason is Reason.NOT_FOUND
    proc.listen((ANY_4, 8000, LISTEN, 11))
    proc.clock.now += 29
    assert source.read([], [server()]).outcomes[0].reason is Reason.NOT_FOUND
    proc.clock.now += 1
    table = source.read([], [server()])
    assert table.listeners == {"llm": (200,)}
    assert table.outcomes[0].reason is None


def test_new_server_is_looked_for_at_once(proc: FakeProc) -> None:
    """A server that the configuration adds or moves does not wait."""
    source = proc.source()
    source.read([], [server()])
    assert source.read([], [server(port=22)]).listeners == {"llm": (900,)}
    both = [server(port=22), server(name="other")]
    assert source.read([], both).listeners == {"llm": (900,), "other": (200,)}
    assert source.read([], both[:1]).listeners == {"llm": (900,)}


@pytest.mark.parametrize("change", ["ended", "replaced", "closed", "zombie"])
def test_lost_listener_is_looked_for_at_once(proc: FakeProc, change: str) -> None:
    """A listener that ended, was replaced under its number, or let go of the socket is no listener."""
    source = proc.source()
    source.read([], [server()])
    if change == "ended":
        proc.end(200)
    elif change == "replaced":
        proc.process(200, 1, ticks=9999, sockets=(11,))
        proc.process(201, 1, sockets=(12,))
    else:
        proc.process(200, 100, ticks=500, state="Z" if change == "zombie" else "S")
    proc.process(800, 1, ticks=9000, sockets=(12,))
    proc.listen((ANY_4, 8000, LISTEN, 12))
    expected = (201, 800) if change == "replaced" else (800,)
    assert source.read([], [server()]).listeners == {"llm": expected}


def test_one_of_several_listeners_ends(proc: FakeProc) -> None:
    """The remaining listeners are told at once; a successor is found at the next scan."""
    proc.process(210, 200, sockets=(11,))
    source = proc.source()
    assert source.read([], [server()]).listeners == {"llm": (200, 210)}
    proc.end(210)
    proc.process(211, 200, sockets=(11,))
    assert source.read([], [server()]).listeners == {"llm": (200,)}
    proc.clock.now += 30
    assert source.read([], [server()]).listeners == {"llm": (200, 211)}


def test_a_blind_scan_undoes_nothing(proc: FakeProc) -> None:
    """Listeners that are still verified survive a scan that could not read the tables."""
    source = proc.source()
    source.read([], [server()])
    shutil.rmtree(proc.root / "self")
    proc.clock.now += 30
    table = source.read([301], [server(), server(name="new", port=22)])
    assert table.listeners == {"llm": (200,)}
    assert {entry.target: entry.reason for entry in table.outcomes} == {"llm": None, "new": Reason.NOT_FOUND}


def test_local_address_with_zone() -> None:
    """A zone that no interface has belongs to no address of this machine."""
    assert local_addresses("fe80::1%nosuch0") == ()
