"""Servers found by the command lines of real processes: as they load, listen, end, come back, fork."""

from __future__ import annotations

import shlex
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from kvwatch.readings import Reason
from tests.discovery.stand_ins import (
    LLAMA_PAGES,
    VLLM_PAGES,
    Looker,
    eventually,
    free_port,
    llama_server,
    program,
    started,
    vllm,
    write_program,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_both_engines_are_found_with_address_and_process(tmp_path: Path) -> None:
    """The name is the address, as of a configured server without a name."""
    looker = Looker()
    with vllm(tmp_path / "v", free_port()) as one, llama_server(tmp_path / "l", 0) as other:
        first, second = looker.find(one.port), looker.find(other.port)
        assert first is not None
        assert second is not None
        assert (first.name, first.url) == (f"127.0.0.1:{one.port}", f"http://127.0.0.1:{one.port}")
        assert (first.engine, first.pid, first.discovered) == ("vllm", one.pid, True)
        assert first.hindrance is None
        # --port 0: the kernel chose, and the one socket of the process tells.
        assert (second.engine, second.pid, second.hindrance) == ("llamacpp", other.pid, None)


def test_a_server_that_loads_is_there_with_a_reason_until_it_listens(tmp_path: Path) -> None:
    """Minutes may pass; the name stays the same, and nobody is asked meanwhile."""
    looker, port = Looker(), free_port()
    with vllm(tmp_path, port, loads=True) as engine:
        loading = looker.find(port)
        assert loading is not None
        assert loading.hindrance is not None
        assert loading.hindrance.reason is Reason.LOADING
        assert f"process {engine.pid} has not opened port {port} yet" in loading.hindrance.detail
        engine.listen()
        ready = looker.find(port)
        assert ready is not None
        assert (ready.hindrance, ready.name, ready.pid) == (None, loading.name, loading.pid)


def test_a_server_comes_goes_and_comes_back(tmp_path: Path) -> None:
    """Each at the next look: the entry goes with the process, and its successor is another one."""
    looker, port = Looker(), free_port()
    assert looker.find(port) is None
    with vllm(tmp_path, port) as first:
        assert looker.find(port) is not None
        first_pid = first.pid
    assert looker.find(port) is None
    with vllm(tmp_path, port):
        again = looker.find(port)
        assert again is not None
        assert again.pid != first_pid


def test_a_port_that_is_closed_and_opened_again(tmp_path: Path) -> None:
    """While the process lives its server is there, and says that it does not listen."""
    script = tmp_path / "llama-server"
    script.write_text(
        "import socket, sys\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[-1])))\n"
        "print(flush=True); sys.stdin.readline()\n"
        "server.close()\n"
        "print(flush=True); sys.stdin.readline()\n"
    )
    looker, port = Looker(), free_port()
    words = [sys.executable, str(script), "-m", "x.gguf", "--port", str(port)]
    with started(words) as engine:
        engine.read()
        open_door = looker.find(port)
        engine.write()
        engine.read()
        closed = looker.find(port)
    assert open_door is not None
    assert closed is not None
    assert (open_door.hindrance, closed.hindrance and closed.hindrance.reason) == (None, Reason.LOADING)


def test_a_shell_that_becomes_a_server_keeps_its_number(tmp_path: Path) -> None:
    """Young processes are read again at the next look, older ones within a minute."""
    looker, port = Looker(), free_port()
    script = write_program(tmp_path, "vllm", VLLM_PAGES)
    line = f"read x; exec {sys.executable} {script} serve tiny --port {port}"
    for seconds in (0.0, 30.0):
        (tmp_path / "port").unlink(missing_ok=True)
        with started(["bash", "-c", line], cwd=tmp_path) as shell:
            assert looker.find(port) is None
            looker.clock.now += seconds
            looker.look()
            shell.write()
            eventually((tmp_path / "port").exists)
            if seconds:
                assert looker.find(port) is None
                looker.clock.now += 60
            target = looker.find(port)
        assert target is not None
        assert target.pid == shell.pid


def test_an_old_shell_is_read_again_when_its_process_comes_to_a_gpu(tmp_path: Path) -> None:
    """Not a minute later: the driver's list says that something happened."""
    looker, port = Looker(), free_port()
    script = write_program(tmp_path, "vllm", VLLM_PAGES)
    line = f"read x; exec {sys.executable} {script} serve tiny --port {port}"
    with started(["bash", "-c", line], cwd=tmp_path) as shell:
        looker.look()
        looker.clock.now += 30
        looker.look()
        shell.write()
        eventually((tmp_path / "port").exists)
        assert looker.find(port) is None
        assert looker.find(port, gpu=[shell.pid]) is not None


def test_several_api_servers_are_one_server(tmp_path: Path) -> None:
    """Copies that inherit the socket, with their launcher's command line, are not servers of their own."""
    looker = Looker()
    with vllm(tmp_path, free_port(), FORKS="3") as engine:
        target = looker.find(engine.port)
        assert target is not None
        assert (target.pid, target.hindrance) == (engine.pid, None)
        assert sum(one.port == engine.port for one in looker.look().targets) == 1


def test_a_launcher_that_stays_is_not_the_server(tmp_path: Path) -> None:
    """`timeout 60 vllm serve` has the words too; the process below it has the memory."""
    looker, port = Looker(), free_port()
    with vllm(tmp_path, port, before=("timeout", "60")) as engine:
        target = looker.find(port)
        assert target is not None
        assert target.pid != engine.pid
        assert target.hindrance is None


def test_a_routers_children_are_servers_and_the_router_is_none(tmp_path: Path) -> None:
    """Each child has a port of its own, another one after each load."""
    looker, first, second = Looker(), free_port(), 0
    script = write_program(tmp_path / "child", "llama-server", LLAMA_PAGES)
    router = tmp_path / "llama-server"
    router.write_text(
        "import socket, subprocess, sys\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[2])))\n"
        "while line := sys.stdin.readline():\n"
        f"    words = [sys.executable, {str(script)!r}, '--port', line.strip(), '-m', 'a.gguf']\n"
        "    child = subprocess.Popen(words)\n"
        "    sys.stdin.readline()\n"
        "    child.kill(); child.wait()\n"
        "    print(flush=True)\n"
    )
    words = [sys.executable, str(router), "--port", str(first), "--models-dir", "."]
    with started(words) as process:
        for _ in range(2):
            (tmp_path / "child" / "port").unlink(missing_ok=True)
            process.write("0")
            eventually((tmp_path / "child" / "port").exists)
            eventually(lambda: (tmp_path / "child" / "port").read_text() != "")
            port = int((tmp_path / "child" / "port").read_text())
            assert port != second
            assert looker.find(first) is None
            target = looker.find(port)
            assert target is not None
            assert (target.engine, target.hindrance) == ("llamacpp", None)
            second = port
            process.write()
            process.read()
            assert looker.find(port) is None


def test_another_processs_port_is_not_taken_for_the_servers(tmp_path: Path) -> None:
    """A server that waits for a port, or is about to fail, does not get what a stranger answers there."""
    looker = Looker()
    with socket.create_server(("127.0.0.1", free_port())) as stranger:
        port = stranger.getsockname()[1]
        with vllm(tmp_path, port, loads=True):
            target = looker.find(port)
    assert target is not None
    assert target.hindrance is not None
    assert target.hindrance.reason is Reason.LOADING
    assert "another process's" in target.hindrance.detail


def test_of_two_on_one_port_the_one_that_listens_counts(tmp_path: Path) -> None:
    """At a restart that overlaps there is one server, and it keeps its name."""
    looker, port = Looker(), free_port()
    with vllm(tmp_path / "old", port) as old:
        before = looker.find(port)
        with vllm(tmp_path / "new", port, loads=True) as new:
            during = looker.find(port)
            old.stop()
            new.listen()
            after = looker.find(port)
    assert before is not None
    assert during is not None
    assert after is not None
    assert (before.pid, during.pid, after.pid) == (old.pid, old.pid, new.pid)
    assert before.name == during.name == after.name


@pytest.mark.parametrize(
    "name, words, detail",
    [
        ("vllm", ("serve", "m", "--uds", "/run/vllm.sock"), "Unix socket /run/vllm.sock"),
        ("llama-server", ("-m", "m.gguf", "--host", "/run/llama.sock"), "Unix socket /run/llama.sock"),
        ("vllm", ("serve", "m", "--ssl-keyfile", "k", "--ssl-certfile", "c"), "https://HOST:8000"),
        ("llama-server", ("-m", "m", "--ssl-key-file", "k", "--ssl-cert-file", "c"), "https://HOST:8080"),
        ("vllm", ("serve", "m", "--grpc"), "gRPC"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(
    tmp_path: Path, name: str, words: tuple[str, ...], detail: str
) -> None:
    """It is there with reason not_supported, and is never asked for anything."""
    (tmp_path / name).write_text("import signal; print(flush=True); signal.pause()")
    with started([sys.executable, str(tmp_path / name), *words]) as process:
        process.read()
        (target,) = (one for one in Looker().look().targets if one.pid == process.pid)
    assert target.hindrance is not None
    assert target.hindrance.reason is Reason.NOT_SUPPORTED
    assert detail in target.hindrance.detail
    assert target.url == ""


@pytest.mark.parametrize(
    "words",
    [
        ("vllm", "bench", "serve"),
        ("vllm", "serve", "m", "--headless"),
        ("llama-cli", "-m", "m.gguf"),
        ("grep", "vllm", "serve"),
    ],
    ids=" ".join,
)
def test_what_is_no_server_is_not_found(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Other commands of the same programs, engines that work for a server elsewhere, and namesakes."""
    script = tmp_path / words[0]
    script.write_text("import signal; print(flush=True); signal.pause()")
    line = [sys.executable, str(script), *words[1:]]
    with started(line) as process:
        process.read()
        found = [one for one in Looker().look().targets if one.pid == process.pid]
    assert found == []


def test_a_supervisor_of_ranks_is_a_server_for_each_port(tmp_path: Path) -> None:
    """With --data-parallel-multi-port-external-lb each local rank is a child with the next port."""
    port = next(port for port in range(free_port(), 32_000) if _is_free(port) and _is_free(port + 1))
    code = (
        "import os, signal, socket, sys\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "for rank in range(2):\n"
        "    if os.fork() == 0:\n"
        "        server = socket.create_server(('127.0.0.1', port + rank))\n"
        "        os.write(1, b'%d\\n' % os.getpid())\n"
        "        break\n"
        "signal.pause()\n"
    )
    (tmp_path / "vllm").write_text(code)
    words = f"serve m --port {port} --data-parallel-multi-port-external-lb --data-parallel-size-local 2"
    with started([sys.executable, str(tmp_path / "vllm"), *shlex.split(words)]) as process:
        pids = {int(process.read()) for _ in range(2)}
        looker = Looker()
        targets = [looker.find(port), looker.find(port + 1)]
    assert {target.pid for target in targets if target} == pids
    assert all(target is not None and target.hindrance is None for target in targets)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_an_unknown_port_with_several_sockets_is_asked_for(tmp_path: Path) -> None:
    """Where the configuration file that would say the port cannot be read, the fixed ports are suspects."""
    looker = Looker()
    ports = sorted({free_port(), *(port for port in range(30_000, 30_050) if _is_free(port))})[:2]
    code = (
        "import signal, socket, sys\n"
        f"servers = [socket.create_server(('127.0.0.1', port)) for port in {ports!r}]\n"
        "print(flush=True); signal.pause()\n"
    )
    (tmp_path / "vllm").write_text(code)
    line = [sys.executable, str(tmp_path / "vllm"), "serve", "m", "--config", "/nowhere.yaml"]
    with started(line) as process:
        process.read()
        found = looker.look()
        (target,) = (one for one in found.targets if one.pid == process.pid)
        suspects = {one.url: None for one in found.suspects if one.pid == process.pid}
        assert sorted(suspects) == [f"http://127.0.0.1:{port}" for port in ports]
        assert target.hindrance is not None
        assert target.hindrance.reason is Reason.AMBIGUOUS
        answers = {f"http://127.0.0.1:{ports[0]}": Reason.NOT_FOUND, f"http://127.0.0.1:{ports[1]}": None}
        found = looker.look(answers=answers)
        (target,) = (one for one in found.targets if one.pid == process.pid)
    assert (target.url, target.hindrance) == (f"http://127.0.0.1:{ports[1]}", None)
    assert [one for one in found.suspects if one.pid == process.pid] == []


def test_a_program_is_found_by_its_words_not_its_path(tmp_path: Path) -> None:
    """The module form and the variables of a llama-server count as its words do."""
    looker, port = Looker(), free_port()
    with program(tmp_path, "llama-server", LLAMA_PAGES, "-m", "m.gguf", loads=True, LLAMA_ARG_PORT=str(port)):
        target = looker.find(port)
    assert target is not None
    assert target.engine == "llamacpp"
