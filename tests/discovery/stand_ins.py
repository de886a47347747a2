"""Programs that look like engines to whoever reads their command line, and answer with captured pages."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.sources.discovery.discovery import Discovery
from kvwatch.sources.procfs import ProcfsSource, ServerAddress
from tests.replay import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvwatch.readings import Reason
    from kvwatch.sources.discovery.found import Found
    from kvwatch.target import Target

REPOSITORY = str(Path(__file__).parents[2])

# A script of the engine's name that answers on --port and writes down what it is asked for. With LOADS in the
# environment it waits for the file `go` before it opens its port; FORKS copies inherit its listening socket.
PROGRAM = """
import http.server, os, pathlib, sys, time
pages = {path: pathlib.Path(file).read_bytes() for path, file in PAGES.items()}
here = pathlib.Path(__file__).parent
port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 0
host = sys.argv[sys.argv.index("--host") + 1] if "--host" in sys.argv else "127.0.0.1"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with (here / "asked").open("a") as asked:
            asked.write(f"{self.server.server_address[1]} {self.command} {self.path}\\n")
        body = pages.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")
    do_POST = do_GET
    def log_message(self, *_): pass
(here / "started").touch()
while os.environ.get("LOADS") and not (here / "go").exists():
    time.sleep(0.01)
server = http.server.ThreadingHTTPServer((host, port), Handler)
(here / "port").write_text(str(server.server_address[1]))
for _ in range(int(os.environ.get("FORKS", "0"))):
    if os.fork() == 0:
        break
server.serve_forever()
"""

VLLM_PAGES = {
    "/metrics": CAPTURES / "vllm" / "0.32.0-draining.metrics",
    "/v1/models": CAPTURES / "vllm" / "0.32.0-models.json",
    "/version": CAPTURES / "vllm" / "0.32.0-version.json",
}
LLAMA_PAGES = {
    "/props": CAPTURES / "llamacpp" / "b11434-split-idle.props.json",
    "/metrics": CAPTURES / "llamacpp" / "b11434-split-idle.metrics",
}


@dataclass
class Script:
    """A small program that one talks to by lines."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self.process.pid

    def read(self) -> str:
        """Wait for its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended early"
        return line.decode()

    def write(self, line: str = "") -> None:
        """Give it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()


@dataclass
class Engine:
    """A running stand-in."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self.process.pid

    @property
    def asked(self) -> list[str]:
        """What it was asked for: port, method, path."""
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

    def listen(self) -> None:
        """Let one that loads open its port, and wait for it."""
        (self.folder / "go").touch()
        self.wait()

    def wait(self) -> None:
        """Wait until its port is open."""
        file = self.folder / "port"
        eventually(lambda: file.exists() and file.read_text() != "")
        self.port = int(file.read_text())

    def stop(self) -> None:
        """End it with all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """Return a port that is free, below those that the kernel hands out by itself."""
    for port in range(20_000 + os.getpid() % 5_000, 30_000):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def eventually(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not come true in time"
        time.sleep(0.02)


@contextlib.contextmanager
def started(words: Sequence[str], **options: object) -> Iterator[Script]:
    """Run a small program that ends with the block."""
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0, **options
    )  # type: ignore[call-overload]
    try:
        yield Script(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def write_program(folder: Path, name: str, pages: Mapping[str, Path]) -> Path:
    """Write a stand-in."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / name
    script.write_text(PROGRAM.replace("PAGES", repr({path: str(file) for path, file in pages.items()})))
    return script


@contextlib.contextmanager
def program(
    folder: Path,
    name: str,
    pages: Mapping[str, Path],
    *arguments: str,
    before: Sequence[str] = (),
    loads: bool = False,
    **environment: str,
) -> Iterator[Engine]:
    """Run a stand-in; `loads`: it does not open its port before it is told to."""
    script = write_program(folder, name, pages)
    for leftover in ("port", "go", "started"):
        (folder / leftover).unlink(missing_ok=True)
    variables = {**os.environ, **environment, **({"LOADS": "1"} if loads else {})}
    process = subprocess.Popen(
        [*before, sys.executable, str(script), *arguments], cwd=folder, env=variables, process_group=0
    )
    engine = Engine(process, folder, 0)
    try:
        eventually((folder / "started").exists)
        if not loads:
            engine.wait()
        yield engine
    finally:
        engine.stop()


def vllm(
    folder: Path, port: int, *arguments: str, **options: object
) -> contextlib.AbstractContextManager[Engine]:
    """Run a `vllm serve`."""
    words = ("serve", "tiny", "--port", str(port), *arguments)
    return program(folder, "vllm", VLLM_PAGES, *words, **options)  # type: ignore[arg-type]


def llama_server(
    folder: Path, port: int, *arguments: str, **options: object
) -> contextlib.AbstractContextManager[Engine]:
    """Run a `llama-server`."""
    words = ("-m", "tiny.gguf", "--metrics", "--port", str(port), "-c", "8192", "-np", "4", *arguments)
    return program(folder, "llama-server", LLAMA_PAGES, *words, **options)  # type: ignore[arg-type]


@dataclass
class Clock:
    """Time that passes only when told."""

    now: float = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Looker:
    """A discovery with what the daemon gives it, on this machine, where other engines may run too."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.discovery = Discovery(clock=self.clock)
        self.processes = ProcfsSource()

    def look(
        self,
        *,
        configured: Sequence[Target] = (),
        gpu: Sequence[int] = (),
        answers: Mapping[str, Reason | None] | None = None,
    ) -> Found:
        """Look once."""
        addresses = [
            ServerAddress(name=target.name, host=target.host, port=target.port, pid=target.pid)
            for target in configured
        ]
        table = self.processes.read(gpu, addresses)
        return self.discovery.read(gpu, table, configured, answers or {}, private=False)

    def find(self, port: int, **arguments: object) -> Target | None:
        """Return the server that a look finds on a port."""
        found = [
            target
            for target in self.look(**arguments).targets  # type: ignore[arg-type]
            if target.port == port
        ]
        assert len(found) <= 1, found
        return found[0] if found else None
