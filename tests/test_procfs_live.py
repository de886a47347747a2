"""ProcfsSource on the real /proc with real processes, sockets and namespaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason
from kvwatch.sources.procfs import ProcfsSource, ServerAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE_PARENT = str(Path(__file__).parents[1])
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
UNSHARE = ("unshare", "--net")

# Prints its port, then waits; arguments: family, address, port.
LISTENER = """
import signal, socket, sys
family = getattr(socket, sys.argv[1])
server = socket.socket(family)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((sys.argv[2], int(sys.argv[3])))
server.listen()
print(server.getsockname()[1], flush=True)
signal.pause()
"""

# An engine process without the socket, with a worker below it, beside two API processes that inherit it.
LAUNCHER = """
import os, signal, socket

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        signal.pause()
    return pid

reading, writing = os.pipe()

def engine():
    with open("/proc/self/comm", "w") as name:
        name.write("a) R 1 (b")
    os.write(writing, b"%d\\n" % child(lambda: None))

engine_pid = child(engine)
worker_pid = int(os.read(reading, 32))
server = socket.create_server(("127.0.0.1", 0))
api_pids = [child(lambda: None) for _ in range(2)]
print(server.getsockname()[1], engine_pid, worker_pid, *api_pids, flush=True)
signal.pause()
"""

# As root first, which also loads every module while that is still allowed; then as nobody.
STRANGER = """
import os, sys
from kvwatch.sources.procfs import ProcfsSource, ServerAddress
servers = [ServerAddress(name="llm", host="127.0.0.1", port=int(sys.argv[1]))]
pids = [int(sys.argv[2])]
print(ProcfsSource().read(pids, servers).listeners)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
table = ProcfsSource().read(pids, servers)
print(table.listeners, table.outcomes[0].reason, table.outcomes[0].detail)
print(table.processes[pids[0]].executable, ProcfsSource().private_pid_namespace)
"""

# In a network namespace of its own: a link with addresses, and a kernel that lets one bind to any address.
LINK = """
{ ip link add t0 type veth peer name t1 &&
  ip link set t0 up &&
  ip link set t1 up &&
  ip addr add 198.51.100.1/24 dev t0 &&
  ip -6 addr add 2001:db8::1/64 dev t0 nodad &&
  echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind &&
  echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind
} || exit 77
exec "$@"
"""
ADDRESSES = """
import sys
from kvwatch.sources.sockets import local_addresses
print([host for host in sys.argv[1:] if local_addresses(host)])
"""


@contextmanager
def running(script: str, *arguments: str, before: tuple[str, ...] = ()) -> Iterator[tuple[int, list[int]]]:
    """Run a script that prints one line of numbers and waits; give its PID and the numbers."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the script ended early"
        yield process.pid, [int(number) for number in line.split()]
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def listening(address: str = "127.0.0.1", port: int = 0) -> tuple[str, ...]:
    """Give the arguments of LISTENER."""
    return ("AF_INET6" if ":" in address else "AF_INET", address, str(port))


def at(port: int, host: str = "127.0.0.1") -> list[ServerAddress]:
    """Make one configured server."""
    return [ServerAddress(name="llm", host=host, port=port)]


def can_unshare() -> bool:
    """Try whether a network namespace can be made."""
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="needs the right to make a network namespace")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop its rights")


def test_own_process() -> None:
    """The process that asks is found with its ancestors and a start time that the clock confirms."""
    table = ProcfsSource().read([os.getpid()], [])
    me = table.processes[os.getpid()]
    assert me.parent_pid == os.getppid()
    assert os.getppid() in table.processes
    assert me.executable == os.path.realpath(sys.executable)
    assert me.started_at is not None
    assert time.time() - 3600 < me.started_at <= time.time()


def test_launcher_with_inherited_socket() -> None:
    """The launcher and its API processes hold the socket; the engine's worker leads up to the launcher."""
    with running(LAUNCHER) as (launcher, (port, engine, worker, *apis)):
        table = ProcfsSource().read([worker], at(port))
        assert table.listeners == {"llm": tuple(sorted([launcher, *apis]))}
        assert [outcome.reason for outcome in table.outcomes] == [None]
        assert table.processes[worker].parent_pid == engine
        assert table.processes[engine].parent_pid == launcher
        assert table.processes[engine].name == "a) R 1 (b"


def test_port_shared_by_two_servers() -> None:
    """Two processes with sockets of their own on one port (SO_REUSEPORT) are both listeners."""
    with (
        running(LISTENER, *listening()) as (first, (port,)),
        running(LISTENER, *listening(port=port)) as (second, _),
    ):
        assert ProcfsSource().read([], at(port)).listeners == {"llm": tuple(sorted([first, second]))}


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="needs IPv6")
@pytest.mark.parametrize(
    "bound,host",
    [("::1", "::1"), ("::1", "localhost"), ("::", "127.0.0.1"), ("::", "::1"), ("0.0.0.0", "localhost")],
)
def test_addresses_of_both_families(bound: str, host: str) -> None:
    """A listener is found under each address that reaches it."""
    with running(LISTENER, *listening(bound)) as (pid, (port,)):
        assert ProcfsSource().read([], at(port, host)).listeners == {"llm": (pid,)}


def test_listener_dies_and_returns() -> None:
    """A listener that dies between two reads is gone at once; its successor is found at the next scan."""
    now = 0.0
    source = ProcfsSource(clock=lambda: now, rescan_seconds=30.0)
    with running(LISTENER, *listening()) as (first, (port,)):
        assert source.read([first], at(port)).listeners == {"llm": (first,)}
    table = source.read([first], at(port))
    assert (table.processes, table.listeners) == ({}, {})
    assert table.outcomes[0].reason is Reason.NOT_FOUND
    with running(LISTENER, *listening(port=port)) as (second, _):
        assert source.read([], at(port)).listeners == {}
        now = 30.0
        assert source.read([], at(port)).listeners == {"llm": (second,)}


def test_zombie() -> None:
    """A zombie is identified, and as a configured process it is not found."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    configured = [ServerAddress(name="llm", host="127.0.0.1", port=1, pid=process.pid)]
    table = ProcfsSource().read([process.pid], configured)
    process.wait()
    assert table.processes[process.pid].executable is None
    assert [outcome.reason for outcome in table.outcomes] == [Reason.NOT_FOUND]


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="needs to choose the next PID")
def test_pid_reused_by_another_process() -> None:
    """A stranger under a dead listener's number is told from it by its start time."""
    source = ProcfsSource()
    with running(LISTENER, *listening()) as (pid, (port,)):
        before = source.read([pid], at(port)).processes[pid]
    for _ in range(100):
        LAST_PID.write_text(str(pid - 1))
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            if stranger.pid == pid:
                table = source.read([pid], at(port))
                assert table.processes[pid].start_ticks > before.start_ticks
                assert table.listeners == {}
                return
        finally:
            stranger.kill()
            stranger.wait()
    pytest.skip("others took the PID each time")


@needs_root
def test_without_rights_to_descriptors() -> None:
    """What root sees, nobody does not: the reason is permission, and it names the fix."""
    with running(LISTENER, *listening()) as (pid, (port,)):
        said = subprocess.run(
            [sys.executable, "-c", STRANGER, str(port), str(pid)],
            env={"PYTHONPATH": PACKAGE_PARENT},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    assert said[0] == f"{{'llm': ({pid},)}}"
    assert said[1].startswith("{} permission ")
    assert "CAP_SYS_PTRACE" in said[1]
    assert said[2] == f"None {ProcfsSource().private_pid_namespace}"


@needs_namespaces
def test_same_port_in_another_network_namespace() -> None:
    """A listener on our port in another network namespace is not the one that we would reach."""
    with running(LISTENER, *listening("0.0.0.0"), before=UNSHARE) as (_, (port,)):
        assert ProcfsSource().read([], at(port)).listeners == {}


@needs_namespaces
@needs_root
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (Debian package iproute2)")
def test_foreign_address_where_any_may_be_bound() -> None:
    """With ip_nonlocal_bind set, only the addresses of this machine count as its own."""
    hosts = ["198.51.100.1", "198.51.100.7", "203.0.113.7", "2001:db8::1", "2001:db8::7", "127.0.0.1"]
    said = subprocess.run(
        [*UNSHARE, "sh", "-c", LINK, "sh", sys.executable, "-c", ADDRESSES, *hosts],
        env={**os.environ, "PYTHONPATH": PACKAGE_PARENT},
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode == 77:
        pytest.skip(f"cannot make a link: {said.stderr.strip()}")
    assert said.stdout.strip() == "['198.51.100.1', '2001:db8::1', '127.0.0.1']"
