"""A server that the configuration names is not found a second time: by its process, then by its address."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvwatch.target import Target
from tests.discovery.stand_ins import Looker, free_port, started, vllm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Listens, and says so.
LISTENER = """
import signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(flush=True)
signal.pause()
"""


def named(port: int, *, host: str = "127.0.0.1", pid: int | None = None, name: str = "chat") -> Target:
    """Return a configured server."""
    return Target(name=name, url=f"http://{host}:{port}", host=host, port=port, pid=pid)


@contextlib.contextmanager
def listener(program: Path, port: int, *words: str) -> Iterator[int]:
    """Run Python under another program's name, listening; yield its process."""
    program.symlink_to(os.path.realpath(sys.executable))
    line = [str(program), "-c", LISTENER, str(port), *words]
    with started(line) as script:
        script.read()
        yield script.pid


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1."])
def test_by_its_listening_process(tmp_path: Path, host: str) -> None:
    """However the configuration spells the address."""
    with vllm(tmp_path, free_port()) as engine:
        looker = Looker()
        assert looker.find(engine.port, configured=[named(engine.port, host=host)]) is None
        assert looker.find(engine.port) is not None


def test_by_its_process_behind_a_proxy(tmp_path: Path) -> None:
    """The address is the proxy's; the process that the configuration gives is the server's."""
    with vllm(tmp_path, free_port()) as engine:
        elsewhere = [named(443, host="192.0.2.77", pid=engine.pid)]
        assert Looker().find(engine.port, configured=elsewhere) is None


def test_by_a_child_of_its_process(tmp_path: Path) -> None:
    """The configured process may be one API server of several: the launcher above it is the server."""
    with vllm(tmp_path, free_port(), FORKS="2") as engine:
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(engine.pid)], capture_output=True, text=True, check=True
        )
        child = int(children.stdout.split()[0])
        assert Looker().find(engine.port, configured=[named(1, pid=child)]) is None


def test_by_its_address_while_it_does_not_listen(tmp_path: Path) -> None:
    """Nobody holds the port yet that the configuration and the command line name."""
    port = free_port()
    with vllm(tmp_path, port, loads=True) as engine:
        looker = Looker()
        assert looker.find(port, configured=[named(port)]) is None
        assert looker.find(port, configured=[named(port + 1)]) is not None
        engine.listen()
        assert looker.find(port, configured=[named(port)]) is None


@pytest.mark.parametrize(
    "stated, configured, same",
    [
        ("0.0.0.0", "127.0.0.2", True),
        ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("localhost", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
    ],
)
def test_by_its_address_as_the_command_line_states_it(
    tmp_path: Path, stated: str, configured: str, *, same: bool
) -> None:
    """A wildcard takes every address of this machine, an address only itself, `localhost` loopback."""
    port = free_port()
    with vllm(tmp_path, port, "--host", stated, loads=True):
        found = Looker().find(port, configured=[named(port, host=configured)])
    assert (found is None) is same


def test_by_this_machines_own_name(tmp_path: Path) -> None:
    """A name server is never asked, but this machine knows its own name."""
    with vllm(tmp_path, free_port()) as engine:
        own = [named(engine.port, host=socket.gethostname())]
        assert Looker().find(engine.port, configured=own) is None


def test_another_server_of_the_same_name_is_no_reason(tmp_path: Path) -> None:
    """Merged by process and never by name: the found one gets its process number behind the name."""
    with vllm(tmp_path, free_port()) as engine:
        taken = [named(1, name=f"127.0.0.1:{engine.port}")]
        looker = Looker()
        for _ in range(2):
            target = looker.find(engine.port, configured=taken)
            assert target is not None
            assert target.name == f"127.0.0.1:{engine.port}-{engine.pid}"


def test_an_unrelated_listener_with_a_server_below_it(tmp_path: Path) -> None:
    """A supervisor that is itself configured (another port) does not hide the servers that it starts."""
    port, engine_port = free_port(), 0
    script = tmp_path / "vllm"
    script.write_text(LISTENER.replace("sys.argv[1]", "sys.argv[-1]"))
    code = (
        "import socket, subprocess, sys\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "child = subprocess.Popen([sys.executable, sys.argv[2], 'serve', 'm', '--port', sys.argv[3]])\n"
        "sys.stdin.readline(); child.kill(); child.wait()\n"
    )
    engine_port = port + 1
    with started([sys.executable, "-c", code, str(port), str(script), str(engine_port)]) as supervisor:
        supervisor.read()
        target = Looker().find(engine_port, configured=[named(port)])
    assert target is not None


def test_a_port_that_docker_published(tmp_path: Path) -> None:
    """Behind the host's port is the container's server: docker-proxy's command line says which."""
    published = free_port() + 1000
    with (
        vllm(tmp_path, free_port()) as engine,
        listener(
            tmp_path / "docker-proxy",
            published,
            *("-proto", "tcp", "-host-ip", "127.0.0.1", "-host-port", str(published)),
            *("-container-ip", "127.0.0.1", "-container-port", str(engine.port)),
        ),
    ):
        looker = Looker()
        assert looker.find(engine.port) is not None
        assert looker.find(engine.port, configured=[named(published)]) is None
